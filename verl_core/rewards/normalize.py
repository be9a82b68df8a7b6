"""`normalize:` of a mount: its scores with mean 0 and standard deviation 1, before the weight.

Three ways: within the row's group, over the step, or by what earlier steps scored. In all of them a
standard deviation below `EPSILON` gives 0, never NaN, and the standard deviation is the unbiased
one (n - 1). The order of the rows makes no difference, to the last bit.

A neutral fill-in (`missing: neutral`) counts as what it stands for, a row that scored the mean of
its group's scored rows. So a row that abstains gets exactly what it would get for that score, and
since no way gives a higher score less, never more than for a higher one. Were fill-ins left out of
the standard deviation, a row would raise its own place by its silence. Where the whole group is
silent the fill-in is the step's mean and stands for nothing that was seen: within the group and
over the step such a row is 0 and in no statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from verl_core.rewards.group_statistics import (
    EPSILON,
    MAX_SQUARED,
    Grouping,
    Moments,
    inverse,
    moments,
)
from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.protocols import Bools, Floats


def normalize_group(values: Floats, grouping: Grouping, live: Bools, neutral: Bools) -> Floats:
    """(B,) float64: each row against its own group; NaN stays NaN.

    A neutral row is exactly 0, and so is a row whose group has fewer than two live ones or a
    standard deviation below `EPSILON`.

    Args:
        values: (B,) float64 after scale, clip and fill-ins; NaN where the mount adds nothing.
        live: (B,) bool, rows that may enter a mean: not masked, and in the baseline. Others are
            compared with their group all the same.
        neutral: (B,) bool, the fill-ins among them.
    """
    ordered, fills = grouping.gather(values), grouping.gather(neutral)
    there = ~np.isnan(ordered)
    counted = there & grouping.gather(live)
    scored = counted & ~fills
    found = moments(ordered if scored.all() else ordered[scored], grouping.counts(scored))
    out = grouping.standardised(ordered, found.mean, found.std(grouping.counts(counted)))
    if fills.any():
        out[fills & there] = 0.0
    return grouping.scatter(out)


def normalize_batch(values: Floats, grouping: Grouping, live: Bools, neutral: Bools) -> Floats:
    """(B,) float64: each row against all live rows of the step; NaN stays NaN.

    Fill-ins are among those rows, but for the ones of a group that is silent as a whole, which are
    0. Fewer than two live rows give 0. Args as in `normalize_group`.
    """
    there = ~np.isnan(values)
    lost = neutral & there
    if lost.any():
        seen = grouping.counts(grouping.gather(there & ~neutral)) > 0
        lost = lost & ~grouping.scatter(grouping.spread_rows(seen))
    chosen = values[live & there & ~lost]
    found = moments(chosen, np.array([len(chosen)]))
    out = _standardised(values, found)
    out[lost] = 0.0
    return out


class RunningNormalizer:
    """Each row against the scored rows of all earlier steps.

    Source: Welford (1962), in the form that adds a whole step at once (Chan, Golub, LeVeque, 1979).
    Nothing changes but in `update`, which the trainer calls at the end of a training step and
    evaluation never does. Until it has seen two rows, a step is normalised by itself, as in
    `normalize_batch`.
    """

    def __init__(self) -> None:
        self.count = 0
        """Rows seen."""
        self.mean = 0.0
        self.squares = 0.0
        """The sum of their squared deviations from `mean`."""

    def normalize(self, values: Floats, grouping: Grouping, live: Bools, neutral: Bools) -> Floats:
        """(B,) float64; args as in `normalize_group`. Leaves the statistics alone."""
        if self.count < 2:
            return normalize_batch(values, grouping, live, neutral)
        seen = Moments(np.array([self.count]), np.array([self.mean]), np.array([self.squares]))
        return _standardised(values, seen)

    def update(self, values: Floats) -> None:
        """Take in a step.

        Args:
            values: (n,) float64, finite: the scored rows after scale and clip, without fill-ins.
                One beyond `MAX_SQUARED` has no part in it: only a mount of weight 0 may score so.
        """
        taken = np.asarray(values, dtype=np.float64)
        taken = taken[np.abs(taken) <= MAX_SQUARED]
        new = moments(taken, np.array([len(taken)]))
        added = int(new.count[0])
        if not added:
            return
        total = self.count + added
        apart = float(new.mean[0]) - self.mean
        self.squares += float(new.squares[0]) + apart * apart * (self.count * added / total)
        self.mean += apart * (added / total)
        self.count = total

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, JSON-ready: ``{count, mean, squares}``."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            ConfigError: it holds no such statistics.
        """
        try:
            count = int(state["count"])
            mean, squares = float(state["mean"]), float(state["squares"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the checkpoint has no running statistics: {type(error).__name__}: {error}",
                path="normalize",
            ) from error
        if count < 0 or not math.isfinite(mean) or not 0.0 <= squares < math.inf:
            raise ConfigError(
                f"the checkpoint's running statistics are none: {dict(state)}", path="normalize"
            )
        self.count, self.mean, self.squares = count, mean, squares


def _standardised(values: Floats, of: Moments) -> Floats:
    """(B,) float64: `values` by the moments of one set of rows; NaN stays NaN."""
    out: Floats = values - of.mean
    out *= inverse(of.std())
    return out


__all__ = ["EPSILON", "RunningNormalizer", "normalize_batch", "normalize_group"]
