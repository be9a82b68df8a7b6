"""`weighted_sum`: the sum of weight times score, over the mounts that have something to add."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.protocols import Bools, Floats, Fused, MountInfo


class WeightedSum:
    """Σ wᵢ sᵢ in float64. Missing mounts add nothing; the other weights stay as they are."""

    name = "weighted_sum"
    additive = True

    def check(self, mounts: Sequence[MountInfo]) -> None:
        """Any scores and any weights can be summed, if there are some."""
        if not any(mount.role == "reward" for mount in mounts):
            raise ConfigError("there is nothing to sum: no mount has role: reward", path="reward")

    def fuse(
        self, scores: Floats, present: Bools, weights: Floats, groups: npt.NDArray[np.int64]
    ) -> Fused:
        """Summed in mount order, one mount after the other, so that the bits are always the same.

        Args and answer as in `verl_reward_sdk.FusionPolicy`.
        """
        with np.errstate(over="ignore"):  # the engine refuses what is not finite
            contributions = np.where(present, scores * weights, 0.0)
        values = np.zeros(len(scores))
        for mount in range(contributions.shape[1]):
            values += contributions[:, mount]
        return Fused(values, contributions)
