"""Group-relative advantages (GRPO).

Source: Shao et al., "DeepSeekMath", arXiv:2402.03300, section 4.1.2 (outcome supervision):
A_i = (r_i - mean(r_group)) / std(r_group), the same for every token of response i.

Deviations from the paper:
1. Rows that are masked, or kept out of the baseline by a gate, enter neither mean nor std.
2. A group with fewer than two rows in its baseline has advantage 0 (there is nothing to compare
   with), and so has one whose standard deviation is below `EPSILON`: never a NaN.
3. The standard deviation is the unbiased one (n - 1), as in verl and TRL.
4. ``norm_by_std=False`` leaves the division out (Liu et al., "Dr. GRPO", arXiv:2503.20783).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-6


@dataclass(frozen=True)
class GroupAdvantage:
    """Advantages of one step.

    Args:
        values: (B,) float64; 0 for rows that are not live.
        signal: (B,) bool; False where the row's group gives no signal.
        dropped: groups with fewer than two rows in their baseline.
        flat: groups in which every row scores the same.
    """

    values: Tensor
    signal: Tensor
    dropped: int
    flat: int


def group_advantages(
    rewards: Tensor, groups: Tensor, live: Tensor, in_baseline: Tensor, *, norm_by_std: bool = True
) -> GroupAdvantage:
    """Advantages of B rows, each against its own group.

    Args:
        rewards: (B,) float64, the fused rewards; rows that are not live may hold anything.
        groups: (B,) int64, rows of one prompt share a number. Groups may differ in size.
        live: (B,) bool, False where the row is masked.
        in_baseline: (B,) bool, False where the row may not enter its group's mean and std.
        norm_by_std: divide by the group's standard deviation.
    """
    values = torch.zeros_like(rewards, dtype=torch.float64)
    signal = torch.zeros_like(live)
    dropped = flat = 0
    counted = live & in_baseline
    for group in torch.unique(groups):
        rows = groups == group
        base = rewards[rows & counted].double()
        if base.numel() < 2:
            dropped += 1
            continue
        centred = rewards[rows & live].double() - base.mean()
        if norm_by_std:
            std = base.std()
            if std < EPSILON:
                flat += 1
                continue
            centred = centred / (std + EPSILON)
        elif centred.abs().max() < EPSILON:
            flat += 1
            continue
        values[rows & live] = centred
        signal |= rows & live
    return GroupAdvantage(values, signal, dropped, flat)
