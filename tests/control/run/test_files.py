from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_core.control.run import RunFiles, SampleQuery
from verl_core.control.run import files as files_module

Append = Callable[[Path, list[Any]], None]


def test_a_folder_without_files_has_no_figures(tmp_path: Path) -> None:
    run = RunFiles(tmp_path)
    assert list(run.series().steps) == []
    page = run.samples(SampleQuery())
    assert (list(page.rows), page.total, page.next) == ([], 0, None)


def test_new_steps_are_given_once(tmp_path: Path, append: Append) -> None:
    append(tmp_path / "metrics.jsonl", [{"step": 1, "a": 0.5}])
    run = RunFiles(tmp_path)
    first = run.series()
    append(tmp_path / "metrics.jsonl", [{"step": 2, "a": 0.25}])
    second = run.series(edition=first.edition, after=1)
    assert (list(second.steps), list(second.figures["a"])) == ([2], [0.25])
    assert second.edition == first.edition


def test_a_resumed_run_is_given_whole_again(tmp_path: Path, append: Append) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, [{"step": step, "a": 1.0} for step in (1, 2, 3)])
    run = RunFiles(tmp_path)
    old = run.series()
    append(tmp_path / "new", [{"step": 1, "a": 1.0}, {"step": 2, "a": 7.0}])
    os.replace(tmp_path / "new", path)
    new = run.series(edition=old.edition, after=3)
    assert (list(new.steps), list(new.figures["a"])) == ([1, 2], [1.0, 7.0])
    assert new.edition != old.edition


def test_two_readers_never_share_an_edition(tmp_path: Path, append: Append) -> None:
    append(tmp_path / "metrics.jsonl", [{"step": 1, "a": 1.0}])
    assert RunFiles(tmp_path).series().edition != RunFiles(tmp_path).series().edition


def test_samples_are_paged_newest_first(
    tmp_path: Path, append: Append, make_sample: Callable[..., dict[str, Any]]
) -> None:
    append(tmp_path / "samples.jsonl", [make_sample(i) for i in range(5)])
    run = RunFiles(tmp_path)
    first = run.samples(SampleQuery(limit=2))
    assert [number for number, _ in first.rows] == [4, 3]
    assert (first.next, first.total) == (3, 5)
    append(tmp_path / "samples.jsonl", [make_sample(5)])  # while somebody reads on
    second = run.samples(SampleQuery(limit=2, before=first.next))
    assert [record["step"] for _, record in second.rows] == [2, 1]
    last = run.samples(SampleQuery(limit=2, before=second.next))
    assert ([number for number, _ in last.rows], last.next) == ([0], None)


def test_torn_and_foreign_lines_are_no_samples(
    tmp_path: Path, append: Append, make_sample: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "samples.jsonl"
    append(path, [make_sample(0), "a text", make_sample(1)])
    with path.open("ab") as file:
        file.write(b'{"step": 2, "resp')
    page = RunFiles(tmp_path).samples(SampleQuery())
    assert [record["step"] for _, record in page.rows] == [1, 0]


def test_places_of_the_oldest_are_let_go(
    tmp_path: Path,
    append: Append,
    make_sample: Callable[..., dict[str, Any]],
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(files_module, "_MOST_SAMPLES", 4)
    monkeypatch.setattr(files_module, "_LET_GO", 2)
    append(tmp_path / "samples.jsonl", [make_sample(i) for i in range(9)])
    page = RunFiles(tmp_path).samples(SampleQuery())
    assert [number for number, _ in page.rows] == [8, 7, 6, 5]
    assert [record["step"] for _, record in page.rows] == [8, 7, 6, 5]
    assert (page.total, page.next) == (9, None)
