"""What several policies ask of their mounts and weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.protocols import Floats, MountInfo


def need_rewards(mounts: Sequence[MountInfo], policy: str) -> list[MountInfo]:
    """The mounts that are fused: those with ``role: reward``, in config order.

    Raises:
        ConfigError: there is none.
    """
    rewards = [mount for mount in mounts if mount.role == "reward"]
    if not rewards:
        raise ConfigError(
            f"there is nothing for {policy} to fuse: no mount has role: reward", path="reward"
        )
    return rewards


def need_switches(mounts: Sequence[MountInfo], policy: str) -> None:
    """Refuse weights other than 0 (off) and 1, which the policy would have to ignore.

    Raises:
        ConfigError: naming the mount and its weight.
    """
    for mount in mounts:
        if mount.weight not in (0.0, 1.0):
            raise ConfigError(
                f"{policy} has no use for a weight of {mount.weight:g}: "
                "a mount is in it (1) or off (0)",
                path=f"reward.{mount.name}.weight",
                hint="write weight: 1 or weight: 0; weighted_mean and product know others",
            )


def shares(weights: Floats) -> Floats:
    """(M,) float64: weights divided by their sum, over all mounts; all 0 where every weight is 0.

    The sum does not depend on the order of the mounts, to the last bit, and does not overflow.
    """
    largest = float(weights.max(initial=0.0))
    if largest == 0.0:
        return np.zeros(len(weights))
    parts = weights / largest
    return parts / math.fsum(parts.tolist())
