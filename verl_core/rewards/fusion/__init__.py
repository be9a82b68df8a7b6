"""How the mounts' scores become one reward: one policy a file.

A policy is a class with the shape of `verl_reward_sdk.FusionPolicy`; a plugin offers more of them
through the hook ``verl_reward_fusion_policies``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_core.rewards.fusion.weighted_sum import WeightedSum
from verl_reward_sdk.errors import ConfigError, did_you_mean
from verl_reward_sdk.protocols import FusionPolicy

if TYPE_CHECKING:
    from verl_core.plugins import PluginRegistry

POLICIES: dict[str, type[FusionPolicy]] = {policy.name: policy for policy in (WeightedSum,)}
LATER = ("weighted_mean", "product", "min", "lexicographic", "constrained")


def fusion_policy(name: str, registry: PluginRegistry | None, *, path: str) -> FusionPolicy:
    """The policy called `name`: of this package, or of a plugin that was loaded.

    Raises:
        ConfigError: there is none, or it comes with a later release.
    """
    policy = POLICIES.get(name)
    if policy is None and registry is not None:
        policy = registry.fusion_policy(name)
    if policy is not None:
        return policy()
    if name in LATER:
        raise ConfigError(
            f"the fusion policy {name!r} comes with a later release",
            path=path,
            hint=f"this one has {', '.join(POLICIES)}",
        )
    raise ConfigError(
        f"there is no fusion policy {name!r}",
        path=path,
        hint=did_you_mean(name, POLICIES) + "; a plugin that offers one is named under plugins:",
    )


__all__ = ["LATER", "POLICIES", "fusion_policy"]
