"""A fusion policy, and what is learnt from step to step for it.

What learns is the policy, where it has a `step_end` (the multipliers of `constrained`), and the
statistics of mounts with ``normalize: running``. Both move at the end of a finished training step
and at no other time. Every engine has a `Fuser` of its own, so that evaluation never moves them and
is not moved by them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from verl_core.config.mount import MountConfig
from verl_core.rewards.columns import TableColumns
from verl_core.rewards.group_statistics import Grouping
from verl_core.rewards.missing import scaled
from verl_core.rewards.normalize import RunningNormalizer, normalize_batch, normalize_group
from verl_core.rewards.statuses import OK
from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.protocols import Bools, Floats, FusionPolicy

logger = logging.getLogger(__name__)


class Fuser:
    """See above.

    Args:
        policy: an instance that no other engine has; its `check` was called.
        mounts: the rewarding mounts, in config order.
    """

    def __init__(self, policy: FusionPolicy, mounts: Mapping[str, MountConfig]) -> None:
        self.policy = policy
        self._mounts = dict(mounts)
        self._running = {
            name: RunningNormalizer()
            for name, mount in mounts.items()
            if mount.normalize == "running"
        }
        self._step: int | None = None

    def normalize(
        self, mount: MountConfig, values: Floats, grouping: Grouping, live: Bools, neutral: Bools
    ) -> Floats:
        """(B,) float64: a mount's values by its ``normalize:``; see `verl_core.rewards.normalize`.

        Nothing is learnt from them.
        """
        if mount.normalize == "group":
            return normalize_group(values, grouping, live, neutral)
        if mount.normalize == "batch":
            return normalize_batch(values, grouping, live, neutral)
        if mount.normalize == "running":
            return self._running[mount.name].normalize(values, grouping, live, neutral)
        return values

    def factors(self, weights: Floats) -> Floats:
        """(M,) float64: what each mount's score is multiplied by in the sum of an additive
        policy."""
        of_policy = getattr(self.policy, "factors", None)
        return weights if of_policy is None else np.asarray(of_policy(weights), dtype=np.float64)

    def figures(self) -> dict[str, float]:
        """What the policy has to log, as it is now: ``reward/<mount>/multiplier``."""
        metrics = getattr(self.policy, "metrics", None)
        return {} if metrics is None else dict(metrics())

    # -- learning --------------------------------------------------------------------------------

    def step_end(self, table: TableColumns) -> None:
        """Learn from a finished training step. The same step again, or an earlier one, is not
        learnt from twice.

        Statistics take the scored rows that may enter a baseline; the policy is told each mount's
        mean raw score as it is logged, over all scored rows.

        Raises:
            ValueError: the table is not of training.
        """
        if not table.training:
            raise ValueError("only training steps are learnt from")
        if table.step is not None:
            if self._step is not None and table.step <= self._step:
                return
            self._step = table.step
        for name, running in self._running.items():
            column = table.columns[name]
            rows = (column.codes == OK) & table.in_baseline
            running.update(scaled(column.scores[rows], self._mounts[name]))
        learn = getattr(self.policy, "step_end", None)
        if learn is not None:
            learn({name: _mean(table.columns[name].scores) for name in self._mounts})

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, JSON-ready: ``{step, running, policy, policy_state}``."""
        own = getattr(self.policy, "state", None)
        return {
            "step": self._step,
            "running": {name: running.state() for name, running in self._running.items()},
            "policy": self.policy.name,
            "policy_state": None if own is None else dict(own()),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint.

        A mount that was not normalised by ``running`` when it was written begins anew, and so does
        a policy that is another now; both are logged.

        Raises:
            ConfigError: it holds what this mount or this policy cannot take.
        """
        self._step = state.get("step")
        saved = state.get("running", {})
        for name, running in self._running.items():
            if name not in saved:
                logger.warning("reward.%s.normalize: running begins anew, with no statistics", name)
                continue
            try:
                running.load_state(saved[name])
            except ConfigError as error:
                raise ConfigError(error.message, path=f"reward.{name}.normalize") from error
        load = getattr(self.policy, "load_state", None)
        if load is None:
            return
        if state.get("policy") != self.policy.name or state.get("policy_state") is None:
            logger.warning("fusion.policy: %s begins anew", self.policy.name)
            return
        load(state["policy_state"])


def _mean(scores: Floats) -> float:
    """Over the scored rows; NaN where there is none."""
    known = scores[~np.isnan(scores)]
    return float(known.mean()) if len(known) else float("nan")
