"""None is an abstention, in whatever sequence or array it stands; NaN never is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from verl_reward_sdk import ContractError, RewardResult


def checked(result: RewardResult, n: int = 3) -> tuple[list[float], list[bool]]:
    scores, scored = result.checked(provider="m", n=n, score_range=(0.0, 1.0))
    assert scores.dtype == np.float64
    assert np.isnan(scores[~scored]).all()
    return scores[scored].tolist(), scored.tolist()


@pytest.mark.parametrize(
    "scores",
    [
        [None, 0.5, 1],
        (None, 0.5, 1),
        np.array([None, 0.5, 1], dtype=object),
        [None, np.float32(0.5), True],
    ],
)
def test_none_is_an_abstention_in_any_sequence(scores: Any) -> None:
    assert checked(RewardResult(scores=scores)) == ([0.5, 1.0], [False, True, True])
    assert checked(RewardResult.of(scores, provider="m")) == ([0.5, 1.0], [False, True, True])


def test_none_abstains_whatever_present_says_and_beside_failures() -> None:
    result = RewardResult(scores=[None, 0.5, 1.0], present=[True, True, True], failures={1: "?"})
    assert checked(result) == ([1.0], [False, False, True])


def test_only_none_is_no_knowledge_at_all() -> None:
    assert checked(RewardResult(scores=[None, None, None])) == ([], [False] * 3)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([None, float("nan"), 0.5], "row 1: the score is not finite"),
        (np.array([None, np.nan, 0.5], dtype=object), "row 1: the score is not finite"),
        ([None, "0.5", 0.5], "row 1: the score is no number"),
        ([None, 2.0, 0.5], "row 1: the score is outside score_range"),
        ([None, 0.5], "wrong length"),
        (["0.1", "0.2", "0.3"], "row 0: the score is no number: got '0.1', expected float"),
    ],
)
def test_what_is_no_score_stays_an_error(scores: Any, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        checked(RewardResult(scores=scores))
