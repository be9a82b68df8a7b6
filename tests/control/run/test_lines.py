from __future__ import annotations

import os
from pathlib import Path

import pytest

from verl_core.control.run import lines
from verl_core.control.run.lines import GrowingFile, record_of


def read(file: GrowingFile) -> list[bytes]:
    return [line for _, line in file.poll()]


def test_each_line_is_given_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    file = GrowingFile(path)
    assert read(file) == []  # it is not there yet
    path.write_bytes(b"one\ntwo\n")
    assert read(file) == [b"one\n", b"two\n"]
    assert read(file) == []
    with path.open("ab") as more:
        more.write(b"three\n")
    assert read(file) == [b"three\n"]
    assert file.edition == 0


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'one\n{"step": ')
    file = GrowingFile(path)
    assert read(file) == [b"one\n"]
    with path.open("ab") as more:
        more.write(b"2}\n")
    assert read(file) == [b'{"step": 2}\n']


@pytest.mark.parametrize("how", ["replaced", "cut and grown beyond"])
def test_another_file_in_its_place_is_read_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntwo\n")
    file = GrowingFile(path)
    read(file)
    if how == "replaced":  # as a run that is resumed does
        (tmp_path / "b").write_bytes(b"one\n")
        os.replace(tmp_path / "b", path)
        expected = [b"one\n"]
    else:  # the same inode, and longer than what was read
        path.write_bytes(b"uno\ndue\ntre\n")
        expected = [b"uno\n", b"due\n", b"tre\n"]
    assert read(file) == expected
    assert file.edition == 1


def test_a_file_that_is_removed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n")
    file = GrowingFile(path)
    read(file)
    path.unlink()
    assert (read(file), file.edition) == ([], 1)
    path.write_bytes(b"two\n")
    assert read(file) == [b"two\n"]


def test_a_line_without_bound_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_LONGEST", 8)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n" + b"x" * 50)
    file = GrowingFile(path)
    assert read(file) == [b"one\n"]
    with path.open("ab") as more:
        more.write(b"x" * 50 + b"\ntwo\n")
    assert read(file) == [b"two\n"]


def test_a_line_is_read_again_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntwo\n")
    file = GrowingFile(path)
    places = [offset for offset, _ in file.poll()]
    assert [file.read_at(place) for place in places] == [b"one\n", b"two\n"]


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"nul", b"[" * 100_000])
def test_what_is_no_object_is_none(line: bytes) -> None:
    assert record_of(line) is None
