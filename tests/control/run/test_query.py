from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verl_core.control.run import query as query_module
from verl_core.control.run.query import SampleQuery, search

Make = Callable[..., dict[str, Any]]


def with_mount(sample: dict[str, Any], **part: Any) -> dict[str, Any]:
    sample["explain"]["mounts"]["style"].update(part)
    return sample


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, True),
        ({"mount": "style"}, True),
        ({"mount": "other"}, False),
        ({"status": "ok"}, True),
        ({"status": "failed"}, False),
        ({"mount": "style", "low": 0.75, "high": 0.75}, True),
        ({"mount": "style", "low": 0.76}, False),
        ({"high": 0.7}, False),
        ({"text": "ANSWER 3"}, True),
        ({"text": "has a space"}, True),
        ({"text": "nowhere"}, False),
        ({"step": 3}, True),
        ({"step": 4}, False),
        ({"status": "gated"}, False),
        ({"status": "masked"}, False),
    ],
)
def test_what_is_wanted(make_sample: Make, asked: dict[str, Any], wanted: bool) -> None:
    assert SampleQuery(**asked).wants(make_sample(3)) is wanted


def test_a_row_without_a_score_is_in_no_range(make_sample: Make) -> None:
    sample = with_mount(make_sample(0, fused=None), raw=None, status="failed")
    assert not SampleQuery(low=-9.0).wants(sample)
    assert not SampleQuery(mount="style", high=9.0).wants(sample)
    assert SampleQuery(mount="style", status="failed").wants(sample)


def test_verdicts_of_a_row(make_sample: Make) -> None:
    sample = with_mount(make_sample(0), severity="veto")
    sample["explain"] |= {"gate": "veto", "masked": "style failed", "blocked": True}
    for status in ("gated", "masked", "blocked"):
        assert SampleQuery(status=status).wants(sample)
    assert SampleQuery(status="gated", mount="style").wants(sample)


@pytest.mark.parametrize("odd", [{}, {"explain": 3}, {"explain": {"mounts": [1]}}, {"fused": "x"}])
def test_odd_records_are_no_error(odd: dict[str, Any]) -> None:
    assert SampleQuery().wants(odd)
    assert not SampleQuery(mount="style").wants(odd)
    assert not SampleQuery(status="ok", low=0.0, text="x", step=1).wants(odd)


def test_a_search_ends_and_says_where_to_go_on(
    make_sample: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "_MOST_SEARCHED", 10)
    rare = SampleQuery(text="answer 2")
    read = {i: make_sample(i) for i in range(20)}
    found, after, searched = search(range(19, -1, -1), lambda i: (read[i], 1), rare)
    assert (found, after, searched) == ([], 10, 10)
    found, after, _ = search(range(9, -1, -1), lambda i: (read[i], 1), rare)
    assert ([number for number, _ in found], after) == ([2], None)


def test_a_search_reads_a_bounded_number_of_bytes(make_sample: Make) -> None:
    _, after, searched = search(
        range(9, -1, -1), lambda i: (make_sample(i), 9 << 20), SampleQuery(limit=99)
    )
    assert (after, searched) == (8, 2)
