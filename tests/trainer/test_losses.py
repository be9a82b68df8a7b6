"""Losses a token, and their sums over micro-batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.trainer.kl import kl_estimate
from verl_core.trainer.losses.aggregate import Denominator, aggregate
from verl_core.trainer.losses.clipped import clipped_policy_loss
from verl_core.trainer.losses.value import clipped_value_loss


def test_on_policy_the_loss_is_minus_the_advantage_and_its_gradient_the_score_function():
    log_probs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    advantages = torch.tensor([[0.5, -1.5]])
    loss, clipped = clipped_policy_loss(
        log_probs, log_probs.detach(), advantages, low=0.2, high=0.2
    )
    assert torch.allclose(loss, -advantages)
    loss.sum().backward()
    assert torch.allclose(log_probs.grad, -advantages)
    assert not clipped.any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.5, 1.0, -1.2),  # held: too far up with a good token
        (1.5, -1.0, 1.5),  # not held: going up with a bad token must hurt
        (0.5, 1.0, -0.5),
        (0.5, -1.0, 0.8),
        (1.1, 1.0, -1.1),
    ],
)
def test_the_clip_only_ever_lowers_the_objective(ratio, advantage, expected):
    loss, _ = clipped_policy_loss(
        torch.tensor([[math.log(ratio)]]),
        torch.zeros(1, 1),
        torch.tensor([[advantage]]),
        low=0.2,
        high=0.2,
    )
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_clip_higher_widens_the_upper_bound_alone():
    up = torch.tensor([[math.log(1.5)]])
    loss, _ = clipped_policy_loss(up, torch.zeros(1, 1), torch.ones(1, 1), low=0.2, high=0.4)
    assert float(loss) == pytest.approx(-1.4, abs=1e-6)


def test_one_broken_token_leaves_the_loss_finite():
    loss, _ = clipped_policy_loss(
        torch.tensor([[500.0]]), torch.zeros(1, 1), torch.tensor([[-1.0]]), low=0.2, high=0.2
    )
    assert torch.isfinite(loss).all()


def test_the_value_loss_holds_the_value_near_the_old_one():
    loss, clipped = clipped_value_loss(
        torch.tensor([[2.0]]), torch.tensor([[0.0]]), torch.tensor([[2.0]]), clip=0.2
    )
    assert float(loss) == pytest.approx(0.5 * (0.2 - 2.0) ** 2)
    assert clipped.all()


def test_without_a_clip_the_value_loss_is_half_the_squared_error():
    loss, clipped = clipped_value_loss(
        torch.tensor([[2.0]]), torch.tensor([[0.0]]), torch.tensor([[1.0]]), clip=None
    )
    assert float(loss) == pytest.approx(0.5)
    assert not clipped.any()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=2, max_size=6),
    st.integers(1, 5),
    st.sampled_from(["token-mean", "seq-mean-token-mean"]),
)
def test_micro_batches_add_up_to_one_big_batch(mask_rows, size, mode):
    mask = torch.tensor(mask_rows).long()
    losses = torch.arange(mask.numel(), dtype=torch.float64).reshape(mask.shape)
    whole = Denominator.of(mode, mask)
    big = aggregate(losses, mask, whole)
    parts = [
        aggregate(losses[i : i + size], mask[i : i + size], whole)
        for i in range(0, len(mask), size)
    ]
    assert float(sum(parts)) == pytest.approx(float(big))
    on = mask.bool()
    if on.any() and mode == "token-mean":
        assert float(big) == pytest.approx(float(losses[on].mean()))


def test_values_outside_the_mask_do_not_count_even_where_they_are_nan():
    losses = torch.tensor([[1.0, float("nan")]])
    mask = torch.tensor([[1, 0]])
    assert float(aggregate(losses, mask, Denominator.of("token-mean", mask))) == 1.0


def test_kl_estimators_are_zero_for_equal_models_and_k3_is_never_negative():
    log_probs = torch.tensor([-1.0, -2.0, -0.1])
    for estimator in ("k1", "k2", "k3"):
        assert not kl_estimate(log_probs, log_probs, estimator).any()
    assert (kl_estimate(log_probs, torch.tensor([-3.0, -0.5, -0.2]), "k3") >= 0).all()


def test_the_mean_of_k1_and_k3_over_samples_is_the_true_kl():
    generator = torch.Generator().manual_seed(0)
    policy = torch.log_softmax(torch.randn(6, generator=generator), -1)
    reference = torch.log_softmax(torch.randn(6, generator=generator), -1)
    true = float((policy.exp() * (policy - reference)).sum())
    drawn = torch.multinomial(policy.exp(), 200_000, replacement=True, generator=generator)
    for estimator in ("k1", "k3"):
        mean = float(kl_estimate(policy[drawn], reference[drawn], estimator).mean())
        assert mean == pytest.approx(true, abs=0.02)
