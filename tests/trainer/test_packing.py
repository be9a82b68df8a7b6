"""Layouts and the plan of micro-batches: every row once, within bounds, with little padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.trainer.packing import (
    TokenBatch,
    padded_inputs,
    plan_micro_batches,
    shared_prefix_inputs,
)


def make_batch(shape: list[tuple[int, list[int]]]) -> TokenBatch:
    prompts, responses, groups = [], [], []
    for group, (length, response_lengths) in enumerate(shape):
        for number, response_length in enumerate(response_lengths):
            prompts.append(np.arange(length) + 100 * group)
            responses.append(np.arange(response_length) + 1000 * (number + 1))
            groups.append(group)
    return TokenBatch(prompts, responses, np.array(groups, dtype=np.int64))


SHAPES = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=5)),
    min_size=1,
    max_size=5,
)


def test_a_prompt_stands_once_before_its_responses() -> None:
    inputs = shared_prefix_inputs(make_batch([(3, [3, 2, 1])]))
    assert inputs.input_ids.tolist() == [[0, 1, 2, 1000, 1001, 2000]]
    assert inputs.position_ids.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert inputs.predict.tolist() == [2, 3, 4, 2, 5, 2]
    assert inputs.mask is not None
    assert inputs.mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 1],
    ]


def test_one_sequence_a_response_when_padded() -> None:
    inputs = padded_inputs(make_batch([(3, [3, 1]), (1, [2])]))
    assert inputs.input_ids.tolist() == [
        [0, 1, 2, 1000, 1001],
        [0, 1, 2, 0, 0],
        [100, 1000, 0, 0, 0],
    ]
    assert inputs.predict.tolist() == [2, 3, 4, 7, 10, 11]
    assert inputs.mask is None


@given(shape=SHAPES)
def test_what_predicts_a_token_is_the_token_before_it(shape: Any) -> None:
    batch = make_batch(shape)
    before = np.concatenate(
        [
            np.concatenate([prompt, response])[len(prompt) - 1 : -1] if len(response) else []
            for prompt, response in zip(batch.prompt_ids, batch.response_ids, strict=True)
        ]
    )
    for inputs in (padded_inputs(batch), shared_prefix_inputs(batch)):
        assert inputs.input_ids.flatten()[inputs.predict].tolist() == before.tolist()
        places = batch.column_of_token + torch.from_numpy(
            np.repeat(batch.prompt_lengths, batch.lengths)
        )
        assert torch.equal(inputs.position_ids.flatten()[inputs.predict], places - 1)


@given(shape=SHAPES)
def test_no_query_is_left_without_a_key(shape: Any) -> None:
    inputs = shared_prefix_inputs(make_batch(shape))
    assert inputs.mask is not None
    assert bool(inputs.mask.any(dim=-1).all())


@given(shape=SHAPES)
def test_packed_and_padded_values_are_each_others_inverse(shape: Any) -> None:
    batch = make_batch(shape)
    packed = torch.arange(1, batch.tokens + 1, dtype=torch.float64, requires_grad=True)
    padded = batch.to_padded(packed, 12)
    assert padded.shape == (len(batch), 12)
    assert int((padded != 0).sum()) == batch.tokens
    assert torch.equal(batch.to_packed(padded), packed)
    assert torch.autograd.grad(padded.sum(), packed)[0].eq(1).all()


@given(
    shape=SHAPES,
    max_rows=st.integers(1, 9),
    max_tokens=st.none() | st.integers(1, 60),
    shared_prefix=st.booleans(),
    data=st.data(),
)
def test_a_plan_holds_each_row_once_within_its_bounds(
    shape: Any, max_rows: int, max_tokens: int | None, shared_prefix: bool, data: Any
) -> None:
    batch = make_batch(shape)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(batch) - 1)))), dtype=np.int64)
    options: Any = {"max_rows": max_rows, "max_tokens": max_tokens, "shared_prefix": shared_prefix}
    plan = plan_micro_batches(batch, rows=rows, **options)
    assert sorted(np.concatenate([rows[:0], *plan]).tolist()) == rows.tolist()
    for part in plan:
        assert 1 <= len(part) <= max_rows
        taken = batch.take(part)
        inputs = shared_prefix_inputs(taken) if shared_prefix else padded_inputs(taken)
        if max_tokens is not None and len(part) > 1:
            assert inputs.input_ids.numel() <= max_tokens
    again = plan_micro_batches(batch, rows=rows, **options)
    assert [part.tolist() for part in plan] == [part.tolist() for part in again]


def test_groups_stay_whole_where_they_fit() -> None:
    batch = make_batch([(4, [3] * 4), (4, [9] * 4), (4, [3] * 4), (4, [9] * 4)])
    plan = plan_micro_batches(batch, max_rows=8)
    assert [sorted(set(batch.groups[part].tolist())) for part in plan] == [[1, 3], [0, 2]]


def test_rows_of_one_group_with_different_prompts_are_refused() -> None:
    batch = TokenBatch(
        [np.array([1]), np.array([2])], [np.array([3]), np.array([4])], np.array([0, 0])
    )
    with pytest.raises(ValueError, match="rows 0 and 1 are of group 0"):
        shared_prefix_inputs(batch)


def test_a_row_without_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="a prompt is empty"):
        TokenBatch([np.array([], dtype=np.int64)], [np.array([3])], np.array([0]))


def test_columns_of_unlike_length_are_refused() -> None:
    with pytest.raises(ValueError, match="1 prompts, 2 responses and 1 groups"):
        TokenBatch([np.array([1])], [np.array([3]), np.array([3])], np.array([0]))
