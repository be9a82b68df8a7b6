"""JSON lines: what a row is, and how a bad one is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config.data import read_rows, require_columns
from verl_reward_sdk import ConfigError


def write(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    )
    return path


def refusal(path: Path, **kwargs: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_rows(path, **kwargs)
    return str(caught.value).replace(f"{path.parent}{os.sep}", "").split("\n")


def test_a_row_is_its_prompt_and_its_other_columns(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    path = write(
        tmp_path,
        '\ufeff{"prompt": "Hello", "ground_truth": "Hi", "n": 1}',
        "",
        json.dumps({"prompt": chat, "ground_truth": None}),
        "  ",
    )
    first, second = read_rows(path)
    assert (first.prompt, first.columns, first.line) == ("Hello", {"ground_truth": "Hi", "n": 1}, 1)
    assert (second.prompt, second.columns, second.line) == (chat, {"ground_truth": None}, 3)
    assert second.source == path


def test_the_prompt_may_stand_under_another_key(tmp_path: Path) -> None:
    [row] = read_rows(write(tmp_path, '{"question": "Why?"}'), prompt_key="question")
    assert (row.prompt, row.columns) == ("Why?", {})


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, '{"prompt": "a\u2028b\x85c"}\r', '{"prompt": "d"}\r'))
    assert [(row.line, row.prompt) for row in rows] == [(1, "a\u2028b\x85c"), (2, "d")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{'prompt': 'a'}", "prompts.jsonl:2:2: not JSON"),
        ('{"prompt": "a",}', "prompts.jsonl:2:16: not JSON"),
        ("prompt,answer", "prompts.jsonl:2:1: not JSON | one JSON object a line"),
        ("[", "a whole file in one array is not JSON lines"),
        ('["a"]', "prompts.jsonl:2: expected a JSON object, got a list"),
        ('"a"', "expected a JSON object, got text"),
        ("null", "expected a JSON object, got null"),
        ('{"prompt": "a", "x": NaN}', "prompts.jsonl:2: NaN is no number"),
        ('{"prompt": "a", "x": -Infinity}', "-Infinity is no number"),
        ('{"prompt": "a", "x": 1e999}', "1e999 is too large a number"),
        ('{"prompt": "a", "x": ' + "9" * 5000 + "}", "too large a number"),
        ('{"prompt": "a", "prompt": "b"}', "the key 'prompt' stands in it twice"),
        ('{"prompt": "a", "x": {"y": 1, "y": 2}}', "the key 'y' stands in it twice"),
        ('{"prompt": "a", "x": ' + "[" * 9000 + "]" * 9000 + "}", "nested deeper than 64 levels"),
        ('{"prompt": "a", "x": ' + "[" * 64 + "]" * 64 + "}", "nested deeper than 64 levels"),
        ('{"prompt": "a", "x": ' + '{"y":' * 64 + "1" + "}" * 65, "nested deeper than 64 levels"),
        ('{"prompt": "\\ud800"}', "surrogate"),
        ('{"prompt": "a", "x": ["\\udc00\\ud800"]}', "half of a surrogate pair"),
        ('{"prompt": "a", "\\ud83d": 1}', "half of a surrogate pair"),
        (b'{"prompt": "\xed\xa0\x80"}', "prompts.jsonl:2:13: byte 0xed is not UTF-8"),
        (b'{"prompt": "a\x00b"}', "prompts.jsonl:2:14: not JSON: Invalid control character"),
        (b"\x00\x00\x00", "prompts.jsonl:2:1: not JSON"),
        (b'\xef\xbb\xbf{"prompt": "a"}', "prompts.jsonl:2"),
        ('{"prompt": "a"} {"prompt": "b"}', "prompts.jsonl:2:17: not JSON: Extra data"),
        ('{"prompt": "a", "x": Infinity}', "Infinity is no number"),
        ('{"prompt": [{"role": "user", "content": "a", "role": "user"}]}', "'role' stands in it"),
        (b'{"prompt": "\xe9"}', "prompts.jsonl:2:13: byte 0xe9 is not UTF-8"),
        ('{"promt": "a"}', "prompts.jsonl:2: the row has no 'prompt' | did you mean 'promt'?"),
        ('{"question": "a"}', "the row has no 'prompt' | data.prompt_key names another"),
        ("{}", "the row has no 'prompt'"),
        ('{"prompt": ""}', "prompts.jsonl:2: 'prompt' is empty"),
        ('{"prompt": " \\n"}', "'prompt' is empty"),
        ('{"prompt": []}', "'prompt' is empty"),
        ('{"prompt": [{"role": "user", "content": " "}]}', "'prompt' is empty"),
        ('{"prompt": 3}', "'prompt' must be text or a list of messages, got a number"),
        ('{"prompt": null}', "got null"),
        ('{"prompt": {"role": "user"}}', "got an object"),
        ('{"prompt": ["a"]}', "'prompt'[0] must be {role, content}, got text"),
        ('{"prompt": [{"rol": "user", "content": "a"}]}', "has no 'role' | did you mean 'rol'?"),
        ('{"prompt": [{"role": "user", "content": 3}]}', "'content' must be text, got a number"),
        ('{"prompt": [{"role": "usr", "content": "a"}]}', "'usr' is no role | mean 'user'?"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: str | bytes, words: str) -> None:
    [said] = refusal(write(tmp_path, '{"prompt": "fine"}', line))
    assert said.startswith("prompts.jsonl:2")
    for word in words.split(" | "):
        assert word in said


def test_all_bad_rows_are_told_up_to_a_bound(tmp_path: Path) -> None:
    lines = refusal(write(tmp_path, *(["x"] * 25)))
    assert [line.split(":")[1] for line in lines[:10]] == [str(n) for n in range(1, 11)]
    assert lines[10:] == ["prompts.jsonl: 15 more rows are bad"]


@pytest.mark.parametrize("content", ["", "\n\n", "  \n", "\ufeff", "\ufeff\r\n\t\r\n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    [said] = refusal(write(tmp_path, content))
    assert "the file is empty" in said


def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, "")
    [said] = refusal(tmp_path / "promts.jsonl")
    assert "no such file (did you mean 'prompts.jsonl'?)" in said
    [said] = refusal(tmp_path / "data" / "prompts.jsonl")
    assert "there is no folder" in said


def test_a_folder_is_no_data_file(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").mkdir()
    [said] = refusal(tmp_path / "prompts.jsonl")
    assert "this is a folder, a file is needed" in said


def test_a_compressed_file_is_not_utf8(tmp_path: Path) -> None:
    said = refusal(write(tmp_path, b"\x1f\x8b\x08\x00\x00\x00"))
    assert "not UTF-8" in said[0]


PROMPTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


def test_a_row_may_have_as_many_levels_as_a_yaml_document(tmp_path: Path) -> None:
    lists = "[" * 63 + "]" * 63  # and the row itself
    text = '"' + "[" * 500 + '"'  # brackets of a text are no levels
    [row] = read_rows(write(tmp_path, f'{{"prompt": "a", "x": {lists}, "y": {text}}}'))
    assert json.dumps(row.columns["x"]) == lists
    assert row.columns["y"] == "[" * 500


def test_a_utf16_file_is_told_to_be_saved_as_utf8(tmp_path: Path) -> None:
    [said] = refusal(write(tmp_path, '{"prompt": "a"}'.encode("utf-16")))
    assert said.startswith("prompts.jsonl:1:1: byte 0xff is not UTF-8")
    assert "save the file as UTF-8" in said


def test_a_line_of_ten_megabytes_is_a_row_as_any_other(tmp_path: Path) -> None:
    long = "word " * 2_000_000
    rows = read_rows(write(tmp_path, '{"prompt": "a"}', json.dumps({"prompt": "b", "x": long})))
    assert (rows[1].line, rows[1].columns["x"]) == (2, long)


def test_the_one_of_many_keys_that_stands_twice_is_named(tmp_path: Path) -> None:
    keys = ", ".join(f'"k{n}": 1' for n in range(200_000))  # each compared with each would not end
    [said] = refusal(write(tmp_path, f'{{"prompt": "a", {keys}, "k199999": 2}}'))
    assert "the key 'k199999' stands in it twice" in said


def test_escaped_null_characters_and_whole_surrogate_pairs_are_text(tmp_path: Path) -> None:
    [row] = read_rows(write(tmp_path, '{"prompt": "a\\u0000b", "x": "\\ud83d\\ude00"}'))
    assert (row.prompt, row.columns["x"]) == ("a\0b", "\U0001f600")


@given(st.lists(st.tuples(PROMPTS, VALUES), min_size=1, max_size=4), st.booleans())
def test_what_json_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, object]], ascii_only: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = write(
        folder,
        *(json.dumps({"prompt": p, "x": x}, ensure_ascii=ascii_only) for p, x in rows),
    )
    assert [(row.prompt, row.columns["x"]) for row in read_rows(path)] == rows


def test_a_missing_column_names_the_row_the_mounts_and_the_nearest_column(tmp_path: Path) -> None:
    rows = read_rows(
        write(
            tmp_path,
            '{"prompt": "a", "ground_truth": "x"}',
            '{"prompt": "b", "groundtruth": "x"}',
            '{"prompt": "c"}',
        )
    )
    with pytest.raises(ConfigError) as caught:
        require_columns(rows, ["ground_truth"], {"ground_truth": ["accuracy", "bleu"]})
    said = str(caught.value)
    assert "prompts.jsonl:2: the row has no column 'ground_truth'" in said
    assert "which 'accuracy', 'bleu' read (1 more rows lack it)" in said
    assert "did you mean 'groundtruth'?" in said


def test_a_column_that_no_row_has_is_told_so(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, '{"prompt": "a", "answer": 1}', '{"prompt": "b"}'))
    with pytest.raises(ConfigError, match=r"no row has the column 'x', which 'm' reads .*answer"):
        require_columns(rows, ["x"], {"x": ["m"]})


def test_a_null_is_a_value_that_the_mount_judges(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, '{"prompt": "a", "x": null}'))
    require_columns(rows, ["x"], {"x": ["m"]})
    assert rows[0].columns["x"] is None
