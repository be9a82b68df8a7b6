"""Token-level rewards: what a provider may answer, where its scores lie, what adds up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rewards.decoders import decoder, utf8
from verl_core.rewards.tokens import (
    Spans,
    TokenPart,
    checked_token_scores,
    place,
    span_values,
)
from verl_reward_sdk.errors import ContractError, RewardError

# -- what a provider may answer -------------------------------------------------------------------


def checked(
    entries: Sequence[Any],
    scores: Sequence[float | None],
    *,
    responses: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
) -> tuple[Any, ...]:
    values = np.array([math.nan if score is None else score for score in scores])
    ids = None if lengths is None else [np.arange(n) for n in lengths]
    return checked_token_scores(
        entries,
        values,
        ~np.isnan(values),
        provider="steps",
        responses=responses or ["0123456789"] * len(entries),
        response_ids=ids,
    )


def test_arrays_and_spans_are_taken_and_rows_without_a_score_are_not_looked_at() -> None:
    rows = checked(
        [np.array([0.5, 0.5], dtype=np.float32), [(0, 4, 0.25), (4, 10, 0.5)], "junk", None, []],
        [1.0, 0.75, None, 0.3, 0.0],
        lengths=[2, 4, 3, 5, 2],
    )
    assert rows[0].dtype == np.float64
    assert rows[0].tolist() == [0.5, 0.5]
    assert (rows[1].starts.tolist(), rows[1].ends.tolist()) == ([0, 4], [4, 10])
    assert rows[1].scores.tolist() == [0.25, 0.5]
    assert rows[2] is None
    assert rows[3] is None
    assert len(rows[4].scores) == 0


def test_a_row_without_tokens_carries_its_score_whole() -> None:
    assert checked([[], np.zeros(0)], [1.0, -1.0], responses=["", ""], lengths=[0, 0]) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("entry", "score", "message", "value", "bound"),
    [
        ([0.5, 0.5, 0.0], 1.0, "a wrong length", "3", "4, one a token"),
        ([0.1, 0.2, 0.3, 0.4], 1.1, "do not add up", "1.0", "1.1 up to"),
        ([(0, 4, 0.5)], 0.6, "do not add up", "0.5", "0.6 up to"),
        ([], 0.1, "do not add up", "0.0", "0.1 up to"),
        ([0.0, math.nan, 0.0, 0.0], 0.0, "not finite", "nan", "a finite number"),
        ([(0, 3, math.inf)], 0.0, "not finite", "inf", "a finite number"),
        ([1.5e308, 1.5e308, 0.0, 0.0], 1.0, "do not add up", "inf", "1.0 up to"),
        ([(-1, 3, 1.0)], 1.0, "a span that", "(-1.0, 3.0, 1.0)", "<= 10 characters"),
        ([(0, 11, 1.0)], 1.0, "a span that", "(0.0, 11.0, 1.0)", "<= 10 characters"),
        ([(5, 4, 1.0)], 1.0, "a span that", "(5.0, 4.0, 1.0)", "start <= end"),
        ([(0, 2.5, 1.0)], 1.0, "a span that", "(0.0, 2.5, 1.0)", "whole numbers"),
        ([(0, math.nan, 1.0)], 1.0, "a span that", "nan", "whole numbers"),
        ([(0, 1)], 1.0, "neither form", "[(0, 1)]", "spans (start, end, score)"),
        ([0.5, [1.0]], 1.0, "neither form", "[0.5, [1.0]]", "(T,) numbers"),
        (["a", "b"], 1.0, "neither form", "['a', 'b']", "(T,) numbers"),
        (0.5, 0.5, "neither form", "0.5", "(T,) numbers"),
    ],
)
def test_what_breaks_the_contract_is_named_with_row_value_and_bound(
    entry: Any, score: float, message: str, value: str, bound: str
) -> None:
    with pytest.raises(ContractError, match="steps: row 1: ") as broken:
        checked([[0.0] * 4, entry], [0.0, score], lengths=[4, 4])
    assert message in broken.value.message
    assert value in str(broken.value.value)
    assert bound in str(broken.value.bound)


def test_the_sum_may_be_as_far_off_as_float32_is_and_no_farther() -> None:
    third = np.full(3, np.float32(1 / 3))
    assert checked([third], [1.0], lengths=[3])[0] is not None
    assert checked([[1e6, -1e6 + 0.5]], [0.0], lengths=[2])[0] is not None
    with pytest.raises(ContractError, match="do not add up"):
        checked([[1e-9, 0.0]], [2e-9], lengths=[2])
    with pytest.raises(ContractError, match="do not add up"):
        checked([[0.0, 0.0]], [1e-9], lengths=[2])


def test_without_response_ids_values_are_checked_but_for_their_number() -> None:
    assert checked([[0.25, 0.75]], [1.0])[0].tolist() == [0.25, 0.75]
    with pytest.raises(ContractError, match="do not add up"):
        checked([[0.25, 0.75]], [2.0])


# -- where a score lies ---------------------------------------------------------------------------


def spans(*items: tuple[int, int, float]) -> Spans:
    table = np.array(items, dtype=np.float64).reshape(-1, 3)
    return Spans(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2])


def test_a_spans_score_lies_on_its_last_token() -> None:
    offsets = np.array([0, 3, 3, 5, 9])
    placed = span_values(spans((0, 3, 1.0), (3, 6, 2.0), (1, 5, 4.0), (8, 9, 8.0)), offsets)
    assert placed.tolist() == [1.0, 0.0, 4.0, 10.0]


def test_an_empty_span_lies_where_the_character_before_it_does() -> None:
    offsets = np.array([0, 0, 3, 5])
    placed = span_values(spans((0, 0, 1.0), (3, 3, 2.0), (5, 5, 4.0)), offsets)
    assert placed.tolist() == [1.0, 2.0, 4.0]


@pytest.mark.slow
def test_steps_of_a_real_tokenizer_lie_on_the_steps_ends(smol: Any) -> None:
    steps = ["First 你好 👍.\n", "Then nai\u0308ve 🇩🇪!\n", "So: 42."]
    text = "".join(steps)
    ids = np.array([*smol.encode(text), smol.eos_token_id])
    ends = np.cumsum([len(step) for step in steps])
    entry = spans(*zip([0, *ends[:-1]], ends, [0.5, -0.25, 1.0], strict=True))
    decode = decoder(smol)
    (placed,) = place(
        np.array([1.25]),
        [TokenPart([entry], 1.0)],
        response_ids=[ids],
        responses=[text],
        decode=decode,
    )
    at = np.flatnonzero(placed)
    assert placed[at].tolist() == [0.5, -0.25, 1.0]
    for token, end in zip(at.tolist(), ends.tolist(), strict=True):
        assert not decode(ids[:token].tolist()).startswith(text[:end])
        assert decode(ids[: token + 1].tolist()).startswith(text[:end])


def test_the_final_turn_is_found_behind_the_turns_before_it() -> None:
    text = "call(yes)\nno\nyes!"
    ids = np.array(list(text.encode()))
    mask = np.array([1] * 10 + [0] * 3 + [1] * 4)
    (placed,) = place(
        np.array([1.0]),
        [TokenPart([spans((0, 3, 1.0))], 1.0)],
        response_ids=[ids],
        response_mask=[mask],
        responses=["yes!"],
        decode=utf8,
    )
    assert np.flatnonzero(placed).tolist() == [15]


def test_a_response_that_its_ids_do_not_hold_is_an_error() -> None:
    with pytest.raises(RewardError, match=r"row 1: .*'other' is not in 'text'"):
        place(
            np.ones(2),
            [TokenPart([None, spans((0, 3, 1.0))], 1.0)],
            response_ids=[np.arange(2), np.array(list(b"text"))],
            responses=["", "other"],
            decode=utf8,
        )
    with pytest.raises(RewardError, match="need the responses and their decoder"):
        place(np.ones(1), [TokenPart([spans((0, 1, 1.0))], 1.0)], response_ids=[np.arange(3)])


def test_scalars_lie_on_the_last_sampled_token() -> None:
    placed = place(
        np.array([1.0, 2.0, 3.0, 4.0, np.nan]),
        [],
        response_ids=[np.arange(3), np.arange(1), np.arange(0), np.arange(3), np.arange(2)],
        response_mask=[np.array(m) for m in ([1, 1, 0], [1], [], [0, 0, 0], [1, 1])],
    )
    assert [row.tolist() for row in placed] == [[0, 1, 0], [2], [], [0, 0, 0], [0, 0]]


def test_mounts_add_up_scaled_and_what_is_left_lies_last() -> None:
    ids = [np.arange(3), np.arange(2)]
    parts = [
        TokenPart([np.array([1.0, 2.0, 3.0]), None], 0.5),
        TokenPart([np.array([0.0, 1.0, 0.0]), np.array([4.0, 0.0])], np.array([2.0, 0.25])),
    ]
    placed = place(np.array([10.0, -1.0]), parts, response_ids=ids)
    assert [row.tolist() for row in placed] == [[0.5, 3.0, 6.5], [1.0, -2.0]]


def test_a_veto_takes_every_token_score_and_a_penalty_lies_last() -> None:
    ids = [np.arange(2)] * 3
    part = TokenPart([np.array([1.0, 1.0])] * 3, 1.0)
    fused = np.array([-5.0, 2.0 - 0.5, np.nan])  # vetoed, penalised, masked
    placed = place(fused, [part], response_ids=ids, whole=np.array([True, False, False]))
    assert [row.tolist() for row in placed] == [[0, -5.0], [1.0, 0.5], [0, 0]]


def test_tool_output_carries_no_reward() -> None:
    part = TokenPart([np.array([1.0, 2.0, 4.0, 8.0, 16.0])], 1.0)
    (placed,) = place(
        np.array([31.0]),
        [part],
        response_ids=[np.arange(5)],
        response_mask=[np.array([0, 1, 0, 1, 0])],
    )
    assert placed.tolist() == [0.0, 7.0, 0.0, 24.0, 0.0]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A batch under an additive policy, with gates and rows that have no score."""
    numbers = st.floats(-100, 100, allow_nan=False)
    texts = draw(st.lists(st.text(max_size=20), min_size=1, max_size=6))
    ids = [np.array([*text.encode("utf-8", "replace"), 299]) for text in texts]
    texts = [utf8(row.tolist()) for row in ids]
    parts = []
    for _ in range(draw(st.integers(0, 3))):
        rows: list[Any] = []
        for row, text in enumerate(texts):
            kind = draw(st.sampled_from(["none", "values", "spans"]))
            if kind == "values":
                n = len(ids[row])
                rows.append(np.array(draw(st.lists(numbers, min_size=n, max_size=n))))
            elif kind == "spans":
                bounds = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
                items = draw(st.lists(st.tuples(bounds, numbers), max_size=4))
                rows.append(spans(*((min(b), max(b), s) for b, s in items)))
            else:
                rows.append(None)
        parts.append(TokenPart(rows, draw(st.floats(-3, 3, allow_nan=False))))
    size = len(texts)
    fused = st.one_of(st.floats(-1000, 1000), st.just(math.nan))
    return {
        "fused": np.array(draw(st.lists(fused, min_size=size, max_size=size))),
        "parts": parts,
        "response_ids": ids,
        "response_mask": [
            np.array(draw(st.lists(st.integers(0, 1), min_size=len(row), max_size=len(row))))
            for row in ids
        ],
        "whole": np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size))),
        "responses": texts,
        "decode": utf8,
    }


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_token_rewards_add_up_to_the_fused_reward_on_sampled_tokens_only(
    case: dict[str, Any],
) -> None:
    placed = place(**case)
    for row, rewards in enumerate(placed):
        fused, mask = case["fused"][row], case["response_mask"][row]
        assert rewards.shape == case["response_ids"][row].shape
        assert not rewards[mask == 0].any()
        if math.isnan(fused) or not mask.any():
            assert not rewards.any()
            continue
        assert math.fsum(rewards) == pytest.approx(fused, rel=1e-9, abs=1e-9)
        if case["whole"][row]:
            assert np.flatnonzero(rewards).tolist() in ([], [int(np.flatnonzero(mask)[-1])])


@settings(max_examples=100, deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_a_rows_token_rewards_do_not_depend_on_the_other_rows(
    case: dict[str, Any], seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(case["fused"]))
    moved = {
        key: [value[i] for i in order] if isinstance(value, list) else value
        for key, value in case.items()
        if key != "parts"
    }
    moved |= {key: case[key][order] for key in ("fused", "whole")}
    moved["parts"] = [TokenPart([p.rows[i] for i in order], p.factor) for p in case["parts"]]
    before, after = place(**case), place(**moved)
    for there, row in enumerate(order):
        assert before[row].tobytes() == after[there].tobytes()
