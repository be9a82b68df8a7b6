"""`constrained`: a weighted sum under the constraint that some mounts keep a mean score.

Sources: Tessler, Mankowitz, Mannor, "Reward Constrained Policy Optimization" (RCPO),
arXiv:1805.11074: the policy is trained on the penalised reward r - λ c, and λ takes a projected
step λ ← Γ[λ + η (E[c] - α)] that is slower than the policy's. The same Lagrangian for language
models: Dai et al., "Safe RLHF", arXiv:2310.12773. Here a constraint is E[s] ≥ bound on a score,
which is c = -s, α = -bound.

Deviations from the papers:
1. The multiplier is one number a constrained mount, changed once a step by the mean raw score of
   that step's scored rows, not by a moving average over episodes (Safe RLHF).
2. The step is RCPO's, additive on λ and clipped to [0, max_multiplier]; Safe RLHF's is on log λ,
   which never gets from 0 to anywhere.
3. The fused reward is not divided by 1 + λ as in Safe RLHF: group-relative advantages do not depend
   on its scale.
4. The term -λ·bound of the Lagrangian, the same for every row, is left out as in RCPO's penalised
   reward: it changes no gradient. So a constrained mount is a mount whose weight is w + λ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from verl_core.config.base import Model
from verl_core.rewards.fusion.weighted_sum import WeightedSum
from verl_core.rewards.fusion.weights import need_rewards
from verl_reward_sdk.errors import ConfigError, did_you_mean
from verl_reward_sdk.protocols import Bools, Floats, Fused, MountInfo


class ConstrainedConfig(Model):
    """Options of ``policy: constrained``."""

    bounds: Annotated[dict[str, float], Field(min_length=1)]
    """Mount: the mean raw score that it should keep, or exceed."""
    rate: Annotated[float, Field(gt=0.0)] = 0.05
    """A multiplier grows by so much in a step for each unit that the mean is under its bound."""
    max_multiplier: Annotated[float, Field(gt=0.0)] = 10.0
    """No multiplier grows beyond it, so that a bound out of reach does not drown the rest."""


class Constrained:
    """Σ wᵢ sᵢ + Σⱼ λⱼ sⱼ in float64, j over the constrained mounts.

    Additive: a mount's contribution is wᵢ sᵢ, of a constrained one (wⱼ + λⱼ) sⱼ. A mount that adds
    nothing to a row contributes 0, as in `weighted_sum`; since every weight and multiplier is ≥ 0,
    a higher score never lowers the fused reward.

    Multipliers begin at 0 and change in `step_end` only, so that all rows of a step are fused with
    the same ones. Evaluation, which never calls it, is fused with those it was given.

    Args:
        config: bounds and pace.
    """

    name = "constrained"
    additive = True
    Config = ConstrainedConfig

    def __init__(self, config: ConstrainedConfig) -> None:
        self.config = config
        self._multipliers = dict.fromkeys(config.bounds, 0.0)
        self._names: tuple[str, ...] = ()

    @property
    def multipliers(self) -> dict[str, float]:
        """Constrained mount -> λ, in [0, max_multiplier]."""
        return dict(self._multipliers)

    def check(self, mounts: Sequence[MountInfo]) -> None:
        """Refuse a bound on what is no reward, and on a mount of weight 0.

        A mount of weight 0 is only observed: its failures and abstentions have no consequence, so
        that a multiplier on it could be dodged.

        Raises:
            ConfigError: naming the mount.
        """
        rewards = {mount.name: mount for mount in need_rewards(mounts, self.name)}
        for name in self.config.bounds:
            path = f"fusion.bounds.{name}"
            if name not in rewards:
                raise ConfigError(
                    f"bounds: names {name!r}, which is no mount with role: reward",
                    path=path,
                    hint=did_you_mean(name, rewards),
                )
            if rewards[name].weight == 0.0:
                raise ConfigError(
                    f"{name} has a bound and weight 0, and a mount of weight 0 is only observed",
                    path=path,
                    hint=f"give {name} a small weight, such as 0.01",
                )
        self._names = tuple(rewards)

    def factors(self, weights: Floats) -> Floats:
        """(M,) float64: what a mount's score is multiplied by, wᵢ + λᵢ; `check` comes first."""
        added: Floats = np.array([self._multipliers.get(name, 0.0) for name in self._names])
        return weights + added

    def fuse(
        self, scores: Floats, present: Bools, weights: Floats, groups: npt.NDArray[np.int64]
    ) -> Fused:
        """Args and answer as in `verl_reward_sdk.FusionPolicy`; `check` comes first."""
        return WeightedSum().fuse(scores, present, self.factors(weights), groups)

    def step_end(self, raw_means: Mapping[str, float]) -> None:
        """Move every multiplier: up while the mean is under its bound, down while it is over.

        Args:
            raw_means: mount -> mean raw score of the step's scored rows. The multiplier of a mount
                that is not in it, or whose mean is NaN (it scored no row), stays as it is.
        """
        for name, bound in self.config.bounds.items():
            mean = raw_means.get(name, math.nan)
            if not math.isnan(mean):
                moved = self._multipliers[name] + self.config.rate * (bound - mean)
                self._multipliers[name] = min(max(moved, 0.0), self.config.max_multiplier)

    def metrics(self) -> dict[str, float]:
        """``reward/<mount>/multiplier`` of every constrained mount."""
        return {f"reward/{name}/multiplier": value for name, value in self._multipliers.items()}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, JSON-ready."""
        return {"multipliers": self.multipliers}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a checkpoint's multipliers; one above `max_multiplier` is lowered to it.

        Raises:
            ConfigError: they are of other mounts than those with a bound, or no multipliers.
        """
        saved = state.get("multipliers")
        if not isinstance(saved, Mapping) or set(saved) != set(self.config.bounds):
            named = ", ".join(sorted(saved)) if isinstance(saved, Mapping) else repr(saved)
            raise ConfigError(
                f"the checkpoint has multipliers of {named}",
                path="fusion.bounds",
                hint=f"this config bounds {', '.join(sorted(self.config.bounds))}",
            )
        for name, value in saved.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0.0 <= value < math.inf:
                raise ConfigError(
                    f"the checkpoint's multiplier of {name} is {value!r}, no number >= 0",
                    path="fusion.bounds",
                )
        ceiling = self.config.max_multiplier
        self._multipliers = {name: min(float(saved[name]), ceiling) for name in self.config.bounds}
