"""From a mount's answers to numbers: `scale`, `clip`, `missing`, `on_error`. `normalize` follows.

A row without a score never becomes a number that nobody asked for. It is either left out, or masked
with its whole row, or takes the place that its config names:

- ``neutral``: the mean of the mount's scored rows in the row's group, else in the step; where the
  step has none either, the mount adds nothing. Means are `math.fsum` over the rows, so that their
  order does not matter to the last bit.
- ``zero`` and ``on_error: {default: x}``: a raw score that was asked for, so that it counts as one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verl_core.config.mount import DefaultScore, MountConfig
from verl_core.rewards.answer import Answer
from verl_core.rewards.statuses import ABSTAINED, FAILED
from verl_reward_sdk.protocols import Bools, Floats


@dataclass
class Filled:
    """A mount's column as the fusion takes it.

    Args:
        values: (B,) float64 after scale and clip, NaN where not `present`.
        present: (B,) bool: the mount adds `values` to the row.
        counted: (B,) bool: the row has a score, of the provider or asked for by the config; a
            neutral place is none.
        masks: (B,) bool: rows that its `missing` or `on_error` masks.
        neutral: (B,) bool: rows in a neutral place.
        unsure: (B,) bool: rows that it may only lower (`Answer.unsure`).
        whole: every row has a score of the provider, and none is unsure.
    """

    values: Floats
    present: Bools
    counted: Bools
    masks: Bools
    neutral: Bools
    unsure: Bools
    whole: bool = False

    def leave_out(self, rows: Bools) -> None:
        """Let the mount add nothing to these rows."""
        self.whole = False
        self.present = self.present & ~rows
        self.values = np.where(rows, np.nan, self.values)

    def hold(self) -> None:
        """Let no row gain by a mount whose condition had no answer. After `normalize`, which could
        lift what was lowered before."""
        if not self.whole and self.unsure.any():
            self.values = np.where(self.unsure, np.minimum(self.values, 0.0), self.values)


def scaled(raw: Floats, mount: MountConfig) -> Floats:
    """Raw scores after `scale`, then `clip`; NaN stays NaN."""
    values = raw * mount.scale if mount.scale != 1.0 else raw
    return values if mount.clip is None else np.clip(values, *mount.clip)


def fused_range(bounds: tuple[float, float], mount: MountConfig) -> tuple[float, float]:
    """Where the values lie that a policy gets of a mount whose raw scores lie in `bounds`: what
    `missing` and `on_error` put in the place of a score included."""
    if mount.normalize != "none":
        return -math.inf, math.inf
    raw = list(bounds)
    if mount.missing == "zero":
        raw.append(0.0)
    if isinstance(mount.on_error, DefaultScore):
        raw.append(mount.on_error.default)
    values = scaled(np.array(raw), mount)
    return float(values.min()), float(values.max())


def fill(
    answer: Answer, mount: MountConfig, groups: npt.NDArray[np.int64], *, observed: bool
) -> Filled:
    """Apply a mount's policies to its answers.

    Args:
        groups: (B,) int64: rows of one prompt share a number.
        observed: its weight is 0, so that it masks nothing.
    """
    values, ok = scaled(answer.scores, mount), answer.ok
    clear = np.zeros(len(ok), dtype=bool)
    whole = answer.unsure is None and len(ok) > 0 and bool(ok.all())
    filled = Filled(values, ok, ok, clear, clear, clear, whole)
    if whole:
        return filled
    if (answer.codes >= ABSTAINED).any():
        filled = Filled(values.copy(), ok.copy(), ok.copy(), clear, clear.copy(), clear)
        abstained, failed = answer.codes == ABSTAINED, answer.codes == FAILED
        if mount.on_error == "abstain":
            abstained = abstained | failed
        elif isinstance(mount.on_error, DefaultScore):
            _asked_for(filled, failed, mount.on_error.default, mount)
        else:
            filled.masks |= failed
        if mount.missing == "zero":
            _asked_for(filled, abstained, 0.0, mount)
        elif mount.missing == "mask":
            filled.masks |= abstained
        else:
            _neutral(filled, values, ok, abstained, groups)
        if observed:
            filled.masks[:] = False
    if answer.unsure is not None:
        filled.unsure = answer.unsure & filled.present
    return filled


def _asked_for(filled: Filled, rows: Bools, raw: float, mount: MountConfig) -> None:
    filled.values[rows] = scaled(np.array([raw]), mount)[0]
    filled.present |= rows
    filled.counted |= rows


def _neutral(
    filled: Filled, values: Floats, ok: Bools, wanted: Bools, groups: npt.NDArray[np.int64]
) -> None:
    rows = np.flatnonzero(wanted)
    if not len(rows) or not ok.any():
        return
    by_group: dict[int, list[float]] = {int(group): [] for group in groups[rows]}
    for row in np.flatnonzero(ok & np.isin(groups, list(by_group))):
        by_group[int(groups[row])].append(float(values[row]))
    means = {group: _mean(scores) for group, scores in by_group.items() if scores}
    if len(means) < len(by_group):
        step = _mean(values[ok].tolist())
        means = {group: means.get(group, step) for group in by_group}
    for row in rows:
        filled.values[row] = means[int(groups[row])]
    filled.present[rows] = filled.neutral[rows] = True


def _mean(scores: list[float]) -> float:
    try:
        return math.fsum(scores) / len(scores)
    except OverflowError:  # sums beyond 1.8e308
        return math.fsum(score / len(scores) for score in scores)
