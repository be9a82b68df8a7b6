"""What a word list may hold, and what is said about one that cannot be used."""

from __future__ import annotations

import pytest

from verl_reward_safety import wordlist
from verl_reward_safety.wordlist import read_terms
from verl_reward_sdk import ConfigError


def terms(tmp_path, raw: bytes) -> list[str]:
    path = tmp_path / "list.txt"
    path.write_bytes(raw)
    return [term.written for term in read_terms(path)]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"best\nlowest price\n", ["best", "lowest price"]),
        (b"best", ["best"]),
        (b"# a comment\nbest  # why\n\t# another\nno#comment\n", ["best", "no#comment"]),
        (b"\\#1\nwe are \\#1 # sign\n", ["#1", "we are #1"]),
        (b"\xef\xbb\xbfbest\r\nfirst\r\n", ["best", "first"]),
        (b"Best\nBEST\nbest\n", ["Best"]),
        ("最好\n第一\n".encode(), ["最好", "第一"]),
        (b"  best  \n", ["best"]),
    ],
)
def test_a_list_is_read(tmp_path, raw, expected) -> None:
    assert terms(tmp_path, raw) == expected


@pytest.mark.parametrize(
    ("raw", "line", "said"),
    [
        (b"", None, "no term"),
        (b"# only\n# comments\n", None, "no term"),
        (b"best\n\nfirst\n", 2, "empty"),
        (b"best\n   \n", 2, "empty"),
        (b"best\nf\xfcr\n", 2, "byte 0xfc is not UTF-8"),
        ("best\n最好\n".encode("gb18030"), 2, "not UTF-8"),
        ("best\n".encode("utf-16"), 1, "UTF-16"),
        (b"best\n\x00\x01\x02\n", 2, "binary"),
        (b"best\n" + b"x" * 501 + b"\n", 2, "501 characters, at most 500"),
        ("best\n\u200b\n".encode(), 2, "no visible character"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_with_its_line(tmp_path, raw, line, said) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        terms(tmp_path, raw)
    assert caught.value.file == str(tmp_path / "list.txt")
    assert caught.value.line == line


def test_a_folder_is_no_list(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot read the word list"):
        read_terms(tmp_path)


def test_a_file_that_is_too_large_is_refused_without_reading_all_of_it(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(wordlist, "MAX_BYTES", 2 * 1024 * 1024)
    path = tmp_path / "list.txt"
    with path.open("wb") as stream:
        stream.truncate(1024**4)  # sparse: a terabyte that takes no room
    with pytest.raises(ConfigError, match="more than 2 MiB"):
        read_terms(path)
