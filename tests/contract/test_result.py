"""The contract's section "A result"."""

from __future__ import annotations

import math

import numpy as np
import pytest

from verl_reward_sdk import RewardResult

LENIENT = {"on_error": "abstain", "max_error_rate": 1.0}


def seen(table, name="m"):
    column = table.columns[name]
    scores = [None if math.isnan(score) else score for score in column.scores]
    return scores, column.status.tolist(), column.reasons


@pytest.mark.parametrize(
    "answer",
    [
        [0.5, None, 1.0],
        (0.5, None, 1.0),
        np.array([0.5, None, 1.0], dtype=object),
        RewardResult([0.5, None, 1.0]),
        RewardResult([0.5, math.nan, 1.0], present=[True, False, True]),
        RewardResult(np.array([0.5, 7.0, 1.0]), present=np.array([1, 0, 1], dtype=bool)),
    ],
)
def test_a_plain_sequence_means_the_same_as_a_result(engine, says, rows, answer):
    """A plain sequence of `float | None` means the same as a `RewardResult`; `None` is
    `present[i] = False`: an abstention, never zero."""
    table = engine({"type": "m", "provider": says(answer), "missing": "mask"}).score(rows(3))
    assert seen(table) == ([0.5, None, 1.0], ["ok", "abstained", "ok"], (None, None, None))
    assert table.fused[[0, 2]].tolist() == [0.5, 1.0]
    assert math.isnan(table.fused[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("form", [list, np.array, RewardResult])
def test_what_is_not_finite_is_an_error_and_no_abstention(engine, says, rows, bad, form):
    """NaN and infinity are errors, not abstentions, whatever `missing:` says, and fail every row
    of the call."""
    mount = {"type": "m", "provider": says(form([0.5, bad])), "missing": "zero", "on_error": "mask"}
    other = {"type": "n", "provider": says([1.0, 1.0])}
    table = engine({**mount, "max_error_rate": 1.0}, other).score(rows(2))
    assert table.columns["m"].status.tolist() == ["failed", "failed"]
    assert table.masked.tolist() == [True, True]
    assert table.mask_reason == ("m failed", "m failed")


@pytest.mark.parametrize("value", [math.nan, math.inf, -3.0, 0.25])
def test_a_row_that_failed_carries_no_score(engine, says, rows, value):
    """`failures`: rows it tried and could not score, with the reason. They carry no score: what
    stands in their place is neither read nor checked."""
    answer = RewardResult([0.5, value], failures={1: "the page is gone"})
    provider = says(answer, score_range=(0.0, 1.0))
    table = engine({"type": "m", "provider": provider}).score(rows(2))
    assert seen(table) == ([0.5, None], ["ok", "failed"], (None, "the page is gone"))
    assert table.explain(1)["mounts"]["m"]["raw"] is None


def test_reasons_are_kept_for_rows_of_every_status(engine, says, rows):
    """`reasons`: why a row abstained, or what the provider saw; a failure's own reason stands over
    them."""
    answer = RewardResult(
        [0.5, None, 0.0], failures={2: "down"}, reasons={0: "saw 3", 1: "no price", 2: "?"}
    )
    table = engine({"type": "m", "provider": says(answer)}).score(rows(3))
    assert seen(table)[2] == ("saw 3", "no price", "down")
    assert table.explain(1)["mounts"]["m"]["reason"] == "no price"


@pytest.mark.parametrize("scores", [[0.5], [0.5] * 3, 0.5, [[0.5], [0.5]], [[0.5, 0.5]], []])
def test_no_answer_of_another_shape_is_made_to_fit(engine, says, rows, scores):
    """A wrong length is a ContractError; scores are never padded or broadcast to fit."""
    mount = {"type": "m", "provider": says(RewardResult(scores)), **LENIENT}
    table = engine(mount, {"type": "n", "provider": says([1.0, 1.0])}).score(rows(2))
    assert seen(table)[:2] == ([None, None], ["failed", "failed"])
    assert "wrong length" in seen(table)[2][0]
    assert table.fused.tolist() == [1.0, 1.0]  # nothing of it got into the sum


@pytest.mark.parametrize("value", [np.nextafter(1.0, 2.0), np.nextafter(0.0, -1.0), 1.5])
def test_no_score_is_clamped_into_its_range(engine, says, rows, value):
    """A value outside `score_range`: `ContractError` with provider, row, value, bound. Scores are
    never clamped, not by the last bit and not by the mount's own `clip:`."""
    provider = says([0.5, value], score_range=(0.0, 1.0))
    mount = {"type": "m", "provider": provider, "clip": [0.0, 1.0], **LENIENT}
    table = engine(mount, {"type": "n", "provider": says([1.0, 1.0])}).score(rows(2))
    scores, status, reasons = seen(table)
    assert (scores, status) == ([None, None], ["failed", "failed"])
    for word in ("m", "row 1", repr(float(value)), "[0, 1]"):
        assert word in reasons[0]


def test_scores_keep_all_bits_of_float64(engine, says, rows):
    """`scores` float64 `(B,)`."""
    third = 1.0 / 3.0
    mount = {"type": "m", "provider": says([third, np.nextafter(third, 1.0)])}
    table = engine(mount).score(rows(2))
    assert table.columns["m"].scores.dtype == table.fused.dtype == np.float64
    assert table.fused.tolist() == [third, np.nextafter(third, 1.0)]
    assert table.fused[0] != table.fused[1]


@pytest.mark.parametrize("what", ["severity", "extras", "token_scores", "present"])
def test_a_side_of_the_answer_that_does_not_fit_breaks_the_contract(engine, says, rows, what):
    """A wrong length of any part fails every row of the call."""
    wrong = {"severity": ["veto"], "extras": {"x": [1.0]}, "token_scores": [], "present": [True]}
    provider = says(RewardResult([0.5, 0.5], **{what: wrong[what]}), token_scores=True)
    table = engine(
        {"type": "m", "provider": provider, **LENIENT}, {"type": "n", "provider": says([1.0, 1.0])}
    ).score(rows(2))
    assert seen(table)[1] == ["failed", "failed"]
    assert "wrong length" in seen(table)[2][1]


def test_a_word_that_is_no_severity_fails_the_gate_and_shuts_the_row(engine, says, rows):
    """`severity`: `none | penalty | veto | skip` a row; another word breaks the contract, and a
    gate that failed never passes a row."""
    gate = says(RewardResult([0.0, 0.0], severity=["none", "forbid"]), role="gate")
    table = engine(
        {"type": "m", "provider": says([1.0, 1.0])},
        {"type": "g", "provider": gate, "role": "gate", "penalty": -1.0},
    ).score(rows(2, training=False, step=None))
    assert table.blocked.tolist() == [True, True]
    assert "row 1: unknown severity: got 'forbid'" in table.columns["g"].reasons[0]
