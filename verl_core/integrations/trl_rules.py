"""What TRL's trainers can carry of a config, and what they cannot.

TRL hands a reward function the rows of one process and no group id, takes one float a row or None,
and gathers afterwards. A row for which every function returns None has advantage 0 and stands
outside its group's baseline; its tokens are counted all the same. (Read in TRL 1.16.0.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from verl_core.config.mount import MountConfig
from verl_core.config.places import located
from verl_core.config.problems import raise_all
from verl_core.config.rewards import RewardsConfig
from verl_core.config.run import RunConfig
from verl_core.config.weight import WeightSchedule
from verl_core.integrations.fitting import (
    asks,
    learns,
    needs_groups,
    refused,
    replaced,
    token_notes,
)
from verl_core.integrations.run_rules import Own, run_refusals
from verl_core.rewards.engine import RewardEngine
from verl_reward_sdk.errors import ConfigError

TRAINER = "TRL"
Mode = Literal["fused", "per_mount"]


@dataclass(frozen=True)
class Trainer:
    """What is known of the trainer when the reward functions are made.

    Args:
        known: whether its arguments were given at all.
        is_async: it is an AsyncGRPO: it scores one whole group a call, in a process of its own,
            says no step and ignores reward weights.
        processes: how many score at once, each its own rows.
        group: responses to a prompt in training; 0 where it is not known.
        eval_group: the same in evaluation.
        rows: rows of one call in training, in one process; 0 where it is not known.
        eval_rows: the same in evaluation.
        normalizes_first: ``multi_objective_aggregation: normalize_then_sum`` (GDPO).
        beta: the weight of the KL term.
    """

    known: bool = False
    is_async: bool = False
    processes: int = 1
    group: int = 0
    eval_group: int = 0
    rows: int = 0
    eval_rows: int = 0
    normalizes_first: bool = False
    beta: float = 0.0

    @classmethod
    def of(cls, args: Any, processes: int) -> Trainer:
        """Of a ``GRPOConfig``, an ``AsyncGRPOConfig``, or None."""
        if args is None:
            return cls(processes=processes)
        is_async = any(kind.__name__ == "AsyncGRPOConfig" for kind in type(args).__mro__)
        group = int(getattr(args, "num_generations", 0) or 0)
        micro = int(getattr(args, "per_device_train_batch_size", 0) or 0)
        aggregation = getattr(args, "multi_objective_aggregation", "sum_then_normalize")
        return cls(
            known=True,
            is_async=is_async,
            processes=1 if is_async else processes,
            group=group,
            eval_group=int(getattr(args, "num_generations_eval", None) or group),
            rows=micro * int(getattr(args, "steps_per_generation", None) or 1),
            eval_rows=int(getattr(args, "per_device_eval_batch_size", 0) or 0),
            normalizes_first=aggregation == "normalize_then_sum",
            beta=float(getattr(args, "beta", 0.0) or 0.0),
        )

    def unknown_groups(self, *, training: bool) -> str | None:
        """Why a group may be incomplete in what a function sees; None where it never is."""
        if not self.known:
            return (
                "TRL gives a reward function no group ids, and without the trainer's arguments"
                " nothing tells where a group ends"
            )
        if self.is_async:
            return None
        group = self.group if training else self.eval_group
        rows = self.rows if training else self.eval_rows
        what = "training" if training else "evaluation"
        if not group or not rows:
            return f"the trainer's arguments do not say how many rows a {what} group has"
        if rows % group:
            return (
                f"a process sees {rows} rows of {what} at once, in groups of {group}: a group may"
                " lie in two processes"
            )
        return None


_GROUP_HINT = (
    "hand over args=GRPOConfig(…), in which per_device_train_batch_size x steps_per_generation (and"
    " per_device_eval_batch_size) hold whole groups"
)


def refuse_run(run: RunConfig, trainer: Trainer, mode: Mode) -> None:
    """Refuse what a run asks for by name beside its mounts.

    Raises:
        ConfigError: all of it, each with its place.
    """
    own = Own(
        TRAINER,
        gdpo=_gdpo_hint(trainer, mode),
        kl="beta in GRPOConfig, a KL in the loss",
        critic=False,
        carries_gdpo=trainer.normalizes_first and mode == "per_mount",
    )
    raise_all([located(run.root, error) for error in run_refusals(run, own)])


def _gdpo_hint(trainer: Trainer, mode: Mode) -> str:
    if trainer.is_async:
        return "leave it out: of TRL's trainers GRPOTrainer has it"
    missing = [] if mode == "per_mount" else ["mode='per_mount'"]
    if not trainer.normalizes_first:
        missing.append("args=GRPOConfig(multi_objective_aggregation='normalize_then_sum', …)")
    return f"TRL has it with {' and '.join(missing)}"


def fit(
    rewards: RewardsConfig, engine: RewardEngine, trainer: Trainer, mode: Mode, *, training: bool
) -> tuple[RewardsConfig, list[str]]:
    """`rewards` as TRL can carry it, and what is to be said about that.

    Args:
        engine: built from `rewards`, not loaded: it knows the providers and the policy.
        training: whether it trains or evaluates.

    Raises:
        ConfigError: it asks by name for something that TRL cannot carry.
    """
    ragged = trainer.unknown_groups(training=training)
    _refuse_groups(rewards, engine, ragged, trainer)
    for mount in rewards.mounts:
        _refuse_mount(mount, trainer)
    if trainer.is_async:
        _refuse_steps(rewards, "AsyncGRPO tells its reward functions no step")
    if mode == "per_mount":
        _refuse_per_mount(rewards, engine, trainer)
    notes = [*_notes(rewards, trainer), *token_notes(engine, TRAINER)]
    if ragged is None:
        return rewards, notes
    return _masked(rewards, ragged, notes)


def _masked(
    rewards: RewardsConfig, ragged: str, notes: list[str]
) -> tuple[RewardsConfig, list[str]]:
    """Abstentions as None, because nobody knows the mean of the row's group."""
    summed = [mount for mount in rewards.mounts if not mount.is_gate]
    for mount in summed:
        if mount.missing == "neutral" and asks(mount, "missing"):
            reason = f"it takes the mean of the row's group, and {ragged}"
            raise refused(
                mount, "missing", TRAINER, reason, f"write mask or zero, or {_GROUP_HINT}"
            )
    changes = {m.name: {"missing": "mask"} for m in summed if m.missing == "neutral"}
    if changes:
        notes.append(
            f"missing: mask in place of neutral ({ragged}): a row about which a mount knows nothing"
            " is returned as None"
        )
    return replaced(rewards, changes), notes


def _refuse_groups(
    rewards: RewardsConfig, engine: RewardEngine, ragged: str | None, trainer: Trainer
) -> None:
    policy = engine.policy
    if learns(policy):
        raise ConfigError(
            f"TRL cannot carry policy: {policy.name}: it learns at the end of each step, and TRL"
            " neither tells a reward function when that is nor keeps what it learnt",
            path="fusion.policy",
            hint="train with verl-reward train, or choose another policy",
        )
    if ragged and needs_groups(policy):
        raise ConfigError(
            f"TRL cannot carry policy: {policy.name} here: {ragged}",
            path="fusion.policy",
            hint=_GROUP_HINT,
        )
    for mount in rewards.mounts:
        scope = engine.mounts[mount.name].provider.scope
        if ragged and scope == "group":
            raise ConfigError(
                f"TRL cannot carry a reward that compares the responses of a group"
                f" ({engine.mounts[mount.name].source}) here: {ragged}",
                path=f"reward.{mount.name}",
                hint=_GROUP_HINT,
            )
        _refuse_normalize(mount, ragged, trainer)


def _refuse_normalize(mount: MountConfig, ragged: str | None, trainer: Trainer) -> None:
    way = str(mount.normalize)
    if way == "group" and ragged:
        raise refused(mount, "normalize", TRAINER, ragged, _GROUP_HINT)
    if way == "batch" and (trainer.processes > 1 or trainer.is_async):
        reason = "it takes the whole step, and a reward function sees the rows of one call only"
        raise refused(mount, "normalize", TRAINER, reason, "group needs no more than whole groups")
    if way == "running":
        reason = "its statistics belong into the checkpoint, and TRL keeps nothing of a reward"
        raise refused(mount, "normalize", TRAINER, reason, "group has no statistics to keep")
    if way != "none" and trainer.normalizes_first:
        reason = "multi_objective_aggregation: normalize_then_sum normalises every reward itself"
        raise refused(mount, "normalize", TRAINER, reason, "leave one of the two out")


def _refuse_mount(mount: MountConfig, trainer: Trainer) -> None:
    if not skips(mount):
        return
    key = "skip_update" if mount.skip_update else "severity"
    if mount.in_baseline:
        reason = (
            "TRL leaves a row out of the update only by a reward of None, which takes it out of its"
            " group's baseline as well"
        )
        raise refused(mount, "in_baseline", TRAINER, reason, f"leave {key}: or in_baseline: out")
    if trainer.beta:
        reason = f"with beta={trainer.beta:g} its KL term trains on every row, skipped or not"
        raise refused(mount, key, TRAINER, reason, "set beta=0.0, or let the gate veto")


def skips(mount: MountConfig) -> bool:
    """Whether the config itself has a gate keep rows out of the update."""
    return mount.is_gate and (
        mount.skip_update or (mount.threshold is not None and mount.severity == "skip")
    )


def _refuse_steps(rewards: RewardsConfig, reason: str) -> None:
    for mount in rewards.mounts:
        if isinstance(mount.weight, WeightSchedule):
            raise ConfigError(
                f"TRL cannot carry a schedule of weights here: {reason}",
                path=f"reward.{mount.name}.weight",
                hint="give the weight as a number",
            )


def _refuse_per_mount(rewards: RewardsConfig, engine: RewardEngine, trainer: Trainer) -> None:
    policy = engine.policy.name
    if policy != "weighted_sum":
        raise ConfigError(
            f"with mode='per_mount' TRL fuses, and it knows a weighted sum only, not {policy}",
            path="fusion.policy",
            hint="mode='fused' fuses by any policy",
        )
    _refuse_steps(
        rewards,
        "with mode='per_mount' TRL sums, by reward_weights that it reads when it starts; "
        "mode='fused' follows schedules",
    )
    for mount in rewards.mounts:
        if trainer.is_async and not mount.is_gate and mount.weight != 1.0:
            raise ConfigError(
                f"AsyncGRPO ignores reward weights, so that {mount.name} would count with 1 in"
                f" place of {mount.setting()}",
                path=f"reward.{mount.name}.weight",
                hint="mode='fused' applies the weights itself",
            )


def _notes(rewards: RewardsConfig, trainer: Trainer) -> Iterator[str]:
    if any(skips(mount) for mount in rewards.mounts):
        yield (
            "a skipped row is returned as None: advantage 0, out of its group's baseline; its"
            " tokens still count in the loss's denominator"
        )
    if trainer.processes > 1:
        yield (
            f"{trainer.processes} processes score their own rows each: max_error_rate, and the"
            " refusal of a step without a live row, hold for each of them"
        )
