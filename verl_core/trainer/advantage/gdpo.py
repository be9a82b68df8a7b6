"""Group reward-decoupled normalisation (GDPO): every reward is normalised before they are summed.

Source: Liu et al., "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward
RL Optimization", arXiv:2601.05242. Of reward k on response i:
A_ik = (r_ik - mean(r_k in the group)) / std(r_k in the group), A_i = sum_k w_k A_ik, and the
advantage of every token of response i is (A_i - mean(A over the batch)) / (std(A over the batch) +
epsilon).

Deviations from the paper:
1. Weights may be any; a mount of weight 0 is left out.
2. Rows that are masked, or kept out of the baseline by a gate, enter no mean and no standard
   deviation, neither of a group nor of the batch. A row to which a mount does not apply has 0 from
   it and is not among that mount's statistics; a neutral fill-in has 0 and counts as a row on the
   mean of its group.
3. A group with fewer than two rows in its baseline has advantage 0 and does not enter the batch's
   standard deviation; a standard deviation below `EPSILON` gives 0. Nothing is added to one above
   it, neither in a group nor over the batch (TRL adds 1e-4, verl 1e-6 in the group).
4. Standard deviations are unbiased (n - 1), as in TRL and verl.
5. The batch's mean is 0 by construction, since each reward sums to 0 over the baseline of every
   group. It is not subtracted, so that a group without signal keeps an exact 0.
6. The batch's standard deviation is over responses, as in the paper and TRL; verl whitens over
   tokens, so that long responses count more.
7. A gate is one more reward of weight 1: its penalty where it spoke, else 0.
8. Where a mount's ``when`` or ``only_if`` had no answer its part is at most 0 (after it was
   normalised); then the batch's mean may lie below 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verl_core.rewards.group_statistics import EPSILON, Grouping, moments
from verl_core.rewards.normalize import normalize_group
from verl_core.trainer.advantage.grpo import GroupAdvantage

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def gdpo_advantages(
    scores: Tensor,
    weights: Tensor,
    groups: Tensor,
    live: Tensor,
    in_baseline: Tensor,
    *,
    neutral: Tensor | None = None,
    penalties: Tensor | None = None,
    unsure: Tensor | None = None,
) -> GroupAdvantage:
    """Advantages of B rows from the scores of M mounts, each against its own group.

    Args:
        scores: (B, M) float64, as the fusion took them (scale, clip and fill-ins done); NaN where a
            mount adds nothing to a row. Rows that are not live may hold anything.
        weights: (M,) float64, >= 0.
        groups: (B,) int64, rows of one prompt share a number. Groups may differ in size.
        live: (B,) bool, False where the row is masked.
        in_baseline: (B,) bool, False where the row may enter no mean.
        neutral: (B, M) bool, the scores that are neutral fill-ins; none by default.
        penalties: (B, G) float64, a column a gate: its penalty where it spoke, else 0.
        unsure: (B, M) bool, the scores that may only lower their row; none by default.

    Returns:
        (B,) float64 advantages, 0 for rows that are not live; which rows have a signal; how many
        groups have none, for want of rows (`dropped`) or because all of their rewards are the same
        or cancel (`flat`).
    """
    on, base = _array(live), _array(live) & _array(in_baseline)
    grouping = Grouping(groups.detach().cpu().numpy())
    columns = scores.detach().cpu().numpy()
    total, largest = summed(
        columns,
        weights.detach().cpu().double().tolist(),
        grouping,
        base,
        np.zeros(columns.shape, dtype=bool) if neutral is None else _array(neutral),
        np.zeros((len(on), 0)) if penalties is None else penalties.detach().cpu().numpy(),
        None if unsure is None else _array(unsure),
    )
    if largest > 0.0:
        total /= largest  # so that small weights are not taken for no spread
    return _finished(total, grouping, on, base)


def summed(
    scores: Floats,
    weights: Sequence[float],
    grouping: Grouping,
    base: Bools,
    neutral: Bools,
    penalties: Floats,
    unsure: Bools | None = None,
) -> tuple[Floats, float]:
    """(B,) the weighted sum of normalised rewards, and the largest weight that had a part in it.

    By this sum an abstention never pays. Whitening divides it by what is spread over all rows, so
    that a row which leads its group anyway may lose a little by a reward that also spreads others.

    Args:
        base: (B,) bool, live rows of the baseline. The rest as in `gdpo_advantages`.
    """
    nobody = np.zeros(len(base), dtype=bool)
    held = np.broadcast_to(nobody[:, None], scores.shape) if unsure is None else unsure
    rewards = [
        (weight, scores[:, mount], neutral[:, mount], held[:, mount])
        for mount, weight in enumerate(weights)
        if weight > 0.0
    ]
    rewards += [(1.0, gate, nobody, nobody) for gate in penalties.T]
    total, largest = np.zeros(len(base)), 0.0
    for weight, column, filled, only_lowers in rewards:
        parts = _parts(column, grouping, base, filled)
        if only_lowers.any():
            parts[only_lowers] = np.minimum(parts[only_lowers], 0.0)
        if parts.any():
            largest = max(largest, weight)
            parts *= weight
            total += parts
    return total, largest


def _array(rows: Tensor) -> Bools:
    return rows.detach().cpu().numpy().astype(bool, copy=False)


def _parts(
    column: npt.NDArray[np.generic], grouping: Grouping, base: Bools, filled: Bools
) -> Floats:
    """(B,) one reward normalised within its groups, 0 where it adds nothing."""
    parts = normalize_group(np.ascontiguousarray(column, dtype=np.float64), grouping, base, filled)
    parts[~np.isfinite(parts)] = 0.0  # infinite only where the row is not live
    return parts


def _finished(total: Floats, grouping: Grouping, on: Bools, base: Bools) -> GroupAdvantage:
    """Whitened over the batch; groups without signal taken out and counted."""
    counted = grouping.gather(base)
    kept = grouping.counts(counted) >= 2
    rows_kept = grouping.spread_rows(kept)
    values = grouping.gather(total)
    values = np.where(rows_kept & grouping.gather(on), values, 0.0)

    chosen = values[rows_kept & counted]
    std = float(moments(chosen, np.array([len(chosen)])).std()[0])
    values = values / std if std > 0.0 else np.zeros_like(values)

    speaks = np.bincount(grouping.index[np.abs(values) > EPSILON], minlength=len(grouping)) > 0
    flat = kept & ~speaks
    signal = grouping.spread_rows(speaks)
    signal_rows = grouping.scatter(signal) & on
    return GroupAdvantage(
        torch.from_numpy(grouping.scatter(values)),
        torch.from_numpy(signal_rows),
        int(np.count_nonzero(~kept)),
        int(np.count_nonzero(flat)),
    )
