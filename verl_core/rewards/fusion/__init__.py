"""How the mounts' scores become one reward: one policy a file.

A policy is a class with the shape of `verl_reward_sdk.FusionPolicy`; a plugin offers more of them
through the hook ``verl_reward_fusion_policies``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from verl_core.config.problems import combined, problems_of
from verl_core.config.rewards import FusionConfig
from verl_core.config.tree import Origin, wrap
from verl_core.rewards.fusion.constrained import Constrained
from verl_core.rewards.fusion.lexicographic import Lexicographic
from verl_core.rewards.fusion.minimum import Minimum
from verl_core.rewards.fusion.product import Product
from verl_core.rewards.fusion.weighted_mean import WeightedMean
from verl_core.rewards.fusion.weighted_sum import WeightedSum
from verl_reward_sdk.errors import ConfigError, did_you_mean
from verl_reward_sdk.protocols import FusionPolicy

if TYPE_CHECKING:
    from verl_core.plugins import PluginRegistry

POLICIES: dict[str, type[FusionPolicy]] = {
    policy.name: policy
    for policy in (WeightedSum, WeightedMean, Product, Minimum, Lexicographic, Constrained)
}


def fusion_policy(fusion: FusionConfig, registry: PluginRegistry | None) -> FusionPolicy:
    """The policy that `fusion` names, of this package or of a plugin that was loaded, with its
    options.

    Raises:
        ConfigError: there is none, it has no such option, or an option is missing or wrong; the
            YAML path says which.
    """
    name = fusion.policy
    policy = POLICIES.get(name)
    if policy is None and registry is not None:
        policy = registry.fusion_policy(name)
    if policy is None:
        raise ConfigError(
            f"there is no fusion policy {name!r}",
            path="fusion.policy",
            hint=did_you_mean(name, POLICIES)
            + "; a plugin that offers one is named under plugins:",
        )
    model: type[BaseModel] | None = getattr(policy, "Config", None)
    _refuse_unknown(name, fusion.options, () if model is None else model.model_fields)
    if model is None:
        return policy()
    return policy(_options(model, fusion))  # type: ignore[call-arg]


def _refuse_unknown(policy: str, options: Mapping[str, Any], known: Any) -> None:
    keys = [*FusionConfig.model_fields, *known]
    problems = [
        ConfigError(
            f"the fusion policy {policy} has no option {key!r}",
            path=f"fusion.{key}",
            hint=did_you_mean(key, keys),
        )
        for key in options
        if key not in keys
    ]
    if problems:
        raise combined(problems)


def _options(model: type[BaseModel], fusion: FusionConfig) -> BaseModel:
    try:
        return model.model_validate(dict(fusion.options))
    except ValidationError as error:
        written = wrap({"fusion": {"policy": fusion.policy, **fusion.options}}, Origin(None))
        raise combined(problems_of(error, model, written, ("fusion",))) from None


__all__ = ["POLICIES", "fusion_policy"]
