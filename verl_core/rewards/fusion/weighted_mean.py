"""`weighted_mean`: the weighted sum divided by the sum of all weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from verl_core.rewards.fusion.weighted_sum import WeightedSum
from verl_core.rewards.fusion.weights import need_rewards, shares
from verl_reward_sdk.protocols import Bools, Floats, Fused, MountInfo


class WeightedMean:
    """Σ wᵢ sᵢ / Σ wᵢ in float64, so that the fused reward stays on the scale of the scores.

    The denominator is the sum over all mounts, whether or not they add something to a row: a mount
    that is absent adds 0 and leaves the parts of the others as they are. Dividing by the weights of
    the present ones alone would let a row rise by losing a mount on which it does badly.

    Additive: a mount's contribution is wᵢ sᵢ / Σ w. Where every weight is 0, all is 0.
    """

    name = "weighted_mean"
    additive = True

    def check(self, mounts: Sequence[MountInfo]) -> None:
        """Any scores and any weights have a mean, if there are some."""
        need_rewards(mounts, self.name)

    def factors(self, weights: Floats) -> Floats:
        """(M,) float64: what a mount's score is multiplied by, wᵢ / Σ w."""
        return shares(weights)

    def fuse(
        self, scores: Floats, present: Bools, weights: Floats, groups: npt.NDArray[np.int64]
    ) -> Fused:
        """Args and answer as in `verl_reward_sdk.FusionPolicy`."""
        return WeightedSum().fuse(scores, present, self.factors(weights), groups)
