"""GAE along tokens, against a computation written another way."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.trainer.advantage.gae import gae, whiten


def by_definition(rewards, values, gamma, lam):
    """A_t = sum_l (gamma lam)^l delta_(t+l), summed term by term for one response."""
    n = len(rewards)
    next_values = [*values[1:], 0.0]
    deltas = [r + gamma * nv - v for r, v, nv in zip(rewards, values, next_values, strict=True)]
    return [sum((gamma * lam) ** k * deltas[t + k] for k in range(n - t)) for t in range(n)]


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=8),
    st.floats(0.1, 1.0),
    st.floats(0.0, 1.0),
)
def test_it_equals_the_papers_sum(pairs, gamma, lam):
    rewards = torch.tensor([[r for r, _ in pairs]]).double()
    values = torch.tensor([[v for _, v in pairs]]).double()
    advantages, returns = gae(rewards, values, torch.ones_like(rewards), gamma=gamma, lam=lam)
    expected = by_definition(rewards[0].tolist(), values[0].tolist(), gamma, lam)
    assert torch.allclose(advantages[0], torch.tensor(expected).double(), atol=1e-9)
    assert torch.allclose(returns, advantages + values)


def test_padding_and_masked_rows_change_nothing():
    rewards = torch.tensor([[0.0, 1.0, 7.0, 7.0], [9.0, 9.0, 9.0, 9.0]])
    values = torch.tensor([[0.5, 0.25, 3.0, 3.0], [9.0, 9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]])
    advantages, returns = gae(rewards, values, mask, gamma=1.0, lam=0.95)
    short, _ = gae(rewards[:1, :2], values[:1, :2], mask[:1, :2], gamma=1.0, lam=0.95)
    assert torch.equal(advantages[:1, :2], short)
    assert not advantages[:, 2:].any()
    assert not advantages[1].any()
    assert not returns[1].any()


def test_whitening_gives_mean_zero_and_variance_one_over_the_mask_only():
    values = torch.tensor([[1.0, 2.0, 50.0], [4.0, 5.0, -9.0]]).double()
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    white = whiten(values, mask)
    kept = white[mask.bool()]
    assert abs(float(kept.mean())) < 1e-9
    assert abs(float(kept.var()) - 1) < 1e-6
    assert not white[:, 2].any()


def test_whitening_one_token_or_equal_values_is_zero_and_never_nan():
    assert not whiten(torch.tensor([[3.0]]).double(), torch.tensor([[1]])).any()
    assert not whiten(torch.full((1, 4), 2.0).double(), torch.ones(1, 4)).any()
