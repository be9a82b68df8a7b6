"""The rewards of a config as TRL's reward functions.

    from verl_core.integrations.trl import reward_functions

    args = GRPOConfig(num_generations=8, ...)
    rewards = reward_functions("run.yaml", args=args)
    GRPOTrainer(model=..., args=args, reward_funcs=rewards.reward_funcs, ...)

TRL calls a function with the prompts, completions and columns of one process, and takes a float or
None a row: None gives a row advantage 0 and takes it out of its group's baseline. ``docs/peers.md``
says what of a config TRL can carry, and what is refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.config.run import RunConfig
from verl_core.integrations.fitting import RewardSets, read_rewards, refuse_nodes, say
from verl_core.integrations.trl_answers import column, fused
from verl_core.integrations.trl_calls import TrlCall
from verl_core.integrations.trl_rules import TRAINER, Mode, Trainer, fit, refuse_run
from verl_core.integrations.trl_scorer import Plan, Scorer, initial
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.table import RewardTable
from verl_reward_sdk.errors import ConfigError


def reward_functions(
    source: str | Path | RunConfig | RewardsConfig,
    mode: Mode = "fused",
    *,
    args: Any = None,
    asynchronous: bool = False,
    weights: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> TrlRewards:
    """What ``GRPOTrainer`` and ``AsyncGRPOTrainer`` take as ``reward_funcs``.

    Nothing is loaded before the first call; the functions may be pickled, and then load in the
    process that calls them.

    Args:
        source: a run's YAML (``model:`` and ``data:`` may be left out), or what was read from one.
        mode: ``fused``: one function that gives the fused reward. ``per_mount``: one a mount, and
            TRL sums them by `TrlRewards.reward_weights`; a gate is a function of weight 1 that
            gives what it changes.
        args: the trainer's ``GRPOConfig`` or ``AsyncGRPOConfig``. It says how many rows a group
            has; without it groups are unknown.
        asynchronous: make coroutine functions, which TRL runs beside each other.
        weights: live weights: the ``weights.db`` of a run, which ``verl-reward serve --state``
            offers over HTTP, or (in one process only) the address of a control plane. One file a
            training run: what a run scored a step with, it scores it with when it is resumed.
        overrides: ``key=value`` that win over the YAML's.

    Raises:
        ConfigError: the config cannot be used, or asks by name for something that TRL cannot carry.
    """
    if mode not in ("fused", "per_mount"):
        raise ConfigError(f"mode is {mode!r}", hint="fused or per_mount")
    trainer = Trainer.of(args, int(os.environ.get("WORLD_SIZE") or 1))
    sets = read_rewards(source, overrides)
    if sets.run is not None:
        refuse_run(sets.run, trainer, mode)
    train, notes = _fitted(sets.train, trainer, mode, training=True)
    evaluation = train
    if not sets.same or trainer.unknown_groups(training=True) != trainer.unknown_groups(
        training=False
    ):
        evaluation, more = _fitted(sets.evaluation, trainer, mode, training=False)
        notes += [f"in evaluation, {note}" for note in more]
    plan = Plan(RewardSets(train, evaluation), trainer, mode, _live(weights, trainer, mode))
    _check_evaluation(plan, sets)
    if os.environ.get("RANK", "0") == "0":
        say(TRAINER, notes)
    return _made(plan, asynchronous)


@dataclass(frozen=True)
class TrlRewards:
    """The functions, in the order in which TRL logs them.

    Args:
        reward_funcs: for the trainer's argument of that name.
        reward_weights: for ``GRPOConfig(reward_weights=…)``; 1 a function with ``mode="fused"``.
    """

    reward_funcs: list[Any]
    reward_weights: list[float]

    def close(self) -> None:
        """Release the providers of this process."""
        for function in self.reward_funcs:
            function.scorer.close()


def _made(plan: Plan, asynchronous: bool) -> TrlRewards:
    scorer = Scorer(plan)
    kind = AsyncTrlReward if asynchronous else TrlReward
    if plan.mode == "fused":
        return TrlRewards([kind(scorer, None, "reward")], [1.0])
    mounts = plan.sets.train.mounts
    functions = [kind(scorer, mount.name, mount.name) for mount in mounts]
    return TrlRewards(functions, [1.0 if m.is_gate else initial(m.setting()) for m in mounts])


def _live(weights: str | Path | None, trainer: Trainer, mode: Mode) -> str | Path | None:
    if weights is None:
        return None
    if mode == "per_mount":
        raise ConfigError(
            "live weights: with mode='per_mount' TRL sums, by reward_weights that it reads when it"
            " starts",
            hint="mode='fused' follows live weights",
        )
    if str(weights).startswith(("http://", "https://")):
        if trainer.processes > 1:
            raise ConfigError(
                f"live weights from {weights}: {trainer.processes} processes would ask at different"
                " moments, and could score one step by different weights",
                hint="give the path of a weights.db that all of them see, and serve that with"
                " verl-reward serve --state",
            )
        return str(weights)
    return Path(weights)


def _fitted(
    rewards: RewardsConfig, trainer: Trainer, mode: Mode, *, training: bool
) -> tuple[RewardsConfig, list[str]]:
    refuse_nodes(rewards, TRAINER)
    engine = RewardEngine.from_config(rewards, frozen_weights=not training)
    try:
        return fit(rewards, engine, trainer, mode, training=training)
    finally:
        engine.close()


def _check_evaluation(plan: Plan, sets: RewardSets) -> None:
    names = [mount.name for mount in sets.train.mounts]
    others = [mount.name for mount in sets.evaluation.mounts]
    if plan.mode == "per_mount" and names != others:
        raise ConfigError(
            "with mode='per_mount' TRL has one list of functions for training and evaluation, and"
            f" eval_reward has other mounts: {', '.join(others)}",
            path="eval_reward",
            hint="mode='fused' evaluates by eval_reward",
        )
    if plan.mode == "per_mount":
        for train, other in zip(sets.train.mounts, sets.evaluation.mounts, strict=True):
            _check_weight(train, other)


def _check_weight(train: MountConfig, evaluation: MountConfig) -> None:
    """TRL sums evaluation by the weights of training, and a gate has one penalty."""
    key = "penalty" if train.is_gate else "weight"
    values = [_counts_with(mount) for mount in (train, evaluation)]
    if train.role != evaluation.role or values[0] != values[1]:
        raise ConfigError(
            f"with mode='per_mount' TRL sums evaluation by the weights of training, {values[0]:g}"
            f" for the {train.role} {train.name}, and eval_reward has the {evaluation.role} with"
            f" {values[1]:g}",
            path=f"eval_reward.{evaluation.name}.{key}",
            hint="mode='fused' evaluates by eval_reward",
        )


def _counts_with(mount: MountConfig) -> float:
    return (mount.penalty or 0.0) if mount.is_gate else initial(mount.setting())


# -- what TRL calls --------------------------------------------------------------------------------


class TrlReward:
    """One reward function.

    Args:
        scorer: scores a call's rows; functions of one config share it.
        mount: whose column it gives; None: the fused reward.
        name: under which TRL logs it.
    """

    def __init__(self, scorer: Scorer, mount: str | None, name: str) -> None:
        self.scorer = scorer
        self.mount = mount
        self.__name__ = name

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **rest: Any,
    ) -> list[float | None]:
        """B rewards; None where the row may not be trained on.

        Raises:
            RewardError: the step's rewards may not be used; a rescoring was of no help.
        """
        return self._read(
            self.scorer.table(self.__name__, TrlCall(prompts, completions, completion_ids, rest))
        )

    def _read(self, table: RewardTable) -> list[float | None]:
        if self.mount is None:
            return fused(table)
        plan = self.scorer.plan
        return column(table, self.mount, plan.penalties.get(self.mount), plan.trainer)


class AsyncTrlReward(TrlReward):
    """The same as a coroutine function, on whatever event loop TRL runs it."""

    async def __call__(  # type: ignore[override]
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **rest: Any,
    ) -> list[float | None]:
        """As `TrlReward.__call__`."""
        call = TrlCall(prompts, completions, completion_ids, rest)
        return self._read(await self.scorer.atable(self.__name__, call))
