"""Slices of an answer are put together again."""

from __future__ import annotations

import dataclasses

import numpy as np

from verl_core.rewards.answer import Answer
from verl_core.rewards.joined import JoinedAnswer
from verl_core.rewards.statuses import NOT_APPLICABLE


def test_slices_of_an_answer_join_to_the_whole_in_every_field():
    n, error, late = 4, RuntimeError("first"), RuntimeError("last")
    parts = [
        Answer(
            scores=np.array([0.3, 0.4]),
            codes=np.array([2, 3], dtype=np.int8),
            words=np.array([1, 2], dtype=np.int8),
            reasons={1: "late"},
            extras={"x": np.array([1.0, 2.0])},
            seconds=1.0,
            error=late,
            token_scores=[np.array([0.3]), None],
            asked=2,
            hits=1,
        ),
        Answer(
            scores=np.array([0.1]),
            codes=np.array([1], dtype=np.int8),
            reasons={0: "early"},
            extras={"y": np.array([5.0])},
            seconds=2.0,
            error=error,
            asked=1,
        ),
    ]
    joined = JoinedAnswer(n)
    joined.take(parts[0], np.array([2, 3]), np.array([2, 3]), np.array([True, False]))
    joined.take(parts[1], np.array([0]), np.array([0, 1]), None)
    found = joined.whole
    expected = {
        "scores": [0.1, None, 0.3, 0.4],
        "codes": [1, NOT_APPLICABLE, 2, 3],
        "words": [0, 0, 1, 2],
        "reasons": {0: "early", 3: "late"},
        "extras": {"x": [None, None, 1.0, 2.0], "y": [5.0, None, None, None]},
        "seconds": 3.0,
        "error": error,
        "unsure": [False, False, True, False],
        "token_scores": [None, None, [0.3], None],
        "asked": 3,
        "hits": 1,
    }
    assert {field.name for field in dataclasses.fields(Answer)} == set(expected)
    for name, value in expected.items():
        assert _plain(getattr(found, name)) == value, name


def _plain(value):
    if isinstance(value, np.ndarray):
        return [None if item != item else item for item in value.tolist()]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
