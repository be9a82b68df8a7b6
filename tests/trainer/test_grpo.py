"""Group-relative advantages: hand-checked cases and properties."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.trainer.advantage.grpo import group_advantages


def advantages(rewards, groups, live=None, in_baseline=None, **kwargs):
    n = len(rewards)
    return group_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(groups),
        torch.tensor(live if live is not None else [True] * n),
        torch.tensor(in_baseline if in_baseline is not None else [True] * n),
        **kwargs,
    )


def test_a_group_of_two_is_plus_and_minus_one_over_root_two():
    result = advantages([1.0, 0.0], [0, 0])
    assert torch.allclose(result.values, torch.tensor([0.7071, -0.7071]).double(), atol=1e-4)


def test_without_the_standard_deviation_only_the_mean_is_taken_off():
    result = advantages([3.0, 1.0, 2.0], [0, 0, 0], norm_by_std=False)
    assert result.values.tolist() == [1.0, -1.0, 0.0]


def test_a_group_that_scores_the_same_everywhere_gives_zero_and_no_nan():
    result = advantages([0.5, 0.5, 1.0, 2.0], [0, 0, 1, 1])
    assert result.values[:2].tolist() == [0.0, 0.0]
    assert not result.signal[:2].any()
    assert result.signal[2:].all()
    assert (result.flat, result.dropped) == (1, 0)


def test_a_masked_row_enters_no_mean_and_gets_no_advantage():
    with_mask = advantages([1.0, 2.0, 900.0], [0, 0, 0], live=[True, True, False])
    without = advantages([1.0, 2.0], [0, 0])
    assert torch.equal(with_mask.values[:2], without.values)
    assert with_mask.values[2] == 0


def test_a_row_kept_out_of_the_baseline_is_still_compared_with_it():
    result = advantages([1.0, 2.0, -5.0], [0, 0, 0], in_baseline=[True, True, False])
    assert torch.equal(result.values[:2], advantages([1.0, 2.0], [0, 0]).values)
    assert result.values[2] < -5


def test_a_group_with_one_live_row_is_dropped_and_counted():
    result = advantages([1.0, 2.0, 3.0], [0, 0, 1], live=[True, False, True])
    assert result.values.tolist() == [0.0, 0.0, 0.0]
    assert result.dropped == 2


def test_groups_may_differ_in_size_and_stand_in_any_order():
    result = advantages([1.0, 5.0, 2.0, 7.0, 3.0], [4, 9, 4, 9, 4])
    alone = advantages([1.0, 2.0, 3.0], [0, 0, 0])
    assert torch.allclose(result.values[[0, 2, 4]], alone.values)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12), st.floats(-3, 3))
def test_adding_a_constant_to_a_group_changes_nothing(rewards, shift):
    plain = advantages(rewards, [0] * len(rewards))
    moved = advantages([r + shift for r in rewards], [0] * len(rewards))
    if np.std(rewards) > 1e-3:
        assert torch.allclose(plain.values, moved.values, atol=1e-6)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12))
def test_advantages_of_a_group_sum_to_zero(rewards):
    assert abs(float(advantages(rewards, [0] * len(rewards)).values.sum())) < 1e-6
