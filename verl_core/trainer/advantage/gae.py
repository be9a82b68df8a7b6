"""Generalised advantage estimation (GAE) along the tokens of a response.

Source: Schulman et al., arXiv:1506.02438, equation 16: A_t = sum_l (gamma lambda)^l delta_{t+l},
delta_t = r_t + gamma V_{t+1} - V_t, with V = 0 behind the last token of a response.

Deviations from the paper:
1. Tokens outside `mask` (padding, rows that are masked) are stepped over: they neither carry a
   value nor decay the trace.
2. Advantages are whitened over the tokens in `mask` (as in verl and InstructGPT's code); returns
   are not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """``(advantages, returns)``, both (B, R) float64, 0 outside `mask`.

    Args:
        rewards: (B, R) token-level rewards.
        values: (B, R) the critic's values of the same tokens.
        mask: (B, R) 1 where the policy sampled the token and the row is live.
        gamma: discount a token, in (0, 1].
        lam: decay of the trace, in [0, 1].
    """
    on = mask.bool()
    rewards, values = rewards.double(), values.double()
    advantages = torch.zeros_like(values)
    trace = torch.zeros_like(values[:, 0])
    next_value = torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        here = on[:, t]
        trace = torch.where(here, delta + gamma * lam * trace, trace)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = torch.where(here, trace, torch.zeros_like(trace))
    returns = torch.where(on, advantages + values, torch.zeros_like(values))
    return advantages, returns


def whiten(values: Tensor, mask: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """`values` with mean 0 and variance 1 over `mask`; 0 outside it, and where all are equal.

    Args:
        values: (B, R) float64.
        mask: (B, R) 1 where a value counts. Fewer than two such tokens leave nothing to whiten:
            the result is 0.
    """
    on = mask.bool()
    chosen = values[on]
    if chosen.numel() < 2:
        return torch.zeros_like(values)
    centred = (values - chosen.mean()) * torch.rsqrt(chosen.var() + epsilon)
    return torch.where(on, centred, torch.zeros_like(values))
