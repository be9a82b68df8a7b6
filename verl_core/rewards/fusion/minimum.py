"""`min`: the lowest score counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from verl_core.rewards.fusion.weights import need_rewards, need_switches
from verl_reward_sdk.protocols import Bools, Floats, Fused, MountInfo


class Minimum:
    """The lowest score among the mounts of weight 1; a weight of 0 switches a mount off.

    A mount that adds nothing to a row is left out there; a row to which none adds anything is 0.
    Not additive: a mount's contribution is the fused value minus the lowest of the others, so that
    it is below 0 for the mount that alone is lowest, and 0 for all others. Where there are no
    others it is the fused value itself.
    """

    name = "min"
    additive = False

    def check(self, mounts: Sequence[MountInfo]) -> None:
        """Refuse a weight other than 0 and 1: the lowest score of several has no weights.

        Raises:
            ConfigError: naming the mount and its weight.
        """
        need_switches(need_rewards(mounts, self.name), self.name)

    def fuse(
        self, scores: Floats, present: Bools, weights: Floats, groups: npt.NDArray[np.int64]
    ) -> Fused:
        """Args and answer as in `verl_reward_sdk.FusionPolicy`."""
        taken = present & (weights > 0.0)
        columns = np.where(taken, scores, np.inf)
        lowest, second = np.full(len(scores), np.inf), np.full(len(scores), np.inf)
        for mount in range(columns.shape[1]):
            column = columns[:, mount]
            second = np.minimum(second, np.maximum(lowest, column))
            lowest = np.minimum(lowest, column)
        values = np.where(np.isinf(lowest), 0.0, lowest)
        others = np.where(np.isinf(second), 0.0, second)
        # Where two mounts are lowest together `others` is the same value, and both contribute 0.
        alone = taken & (columns == lowest[:, None])
        return Fused(values, np.where(alone, (values - others)[:, None], 0.0))
