"""What a run's YAML says beside its mounts about what is rewarded, and only our trainer carries.

How a trainer samples and updates (``model``, ``data``, ``rollout``, ``optim``, ``trainer``, the
loss's part of ``algorithm``) is its own: those sections have no effect elsewhere, and are not asked
for by being written. What makes another reward of the mounts' scores is: it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verl_core.config.dataflow import BUILT_IN, NodeConfig, entry_name
from verl_core.config.run import RunConfig
from verl_reward_sdk.errors import ConfigError

_OURS = frozenset(name for names in BUILT_IN.values() for name in names)
_TRAIN_HERE = "train with verl-reward train"


@dataclass(frozen=True)
class Own:
    """What another trainer has of its own in the place of ours, for hints.

    Args:
        trainer: its name.
        gdpo: what to do instead of ``advantage: [gdpo]``.
        kl: the setting of its KL term.
        critic: whether it can train one.
        carries_gdpo: whether it does, as it is set up.
    """

    trainer: str
    gdpo: str
    kl: str
    critic: bool = True
    carries_gdpo: bool = False


def run_refusals(run: RunConfig, own: Own) -> Iterator[ConfigError]:
    """All that `run` asks for beside its mounts and that `own` cannot carry, with YAML paths."""
    mounts = {mount.name for mount in run.reward}
    for stage, entries in (run.dataflow or {}).items():
        for index, entry in enumerate(entries):
            error = None if entry_name(entry) in mounts else _entry(entry, own)
            if error is not None:
                yield error.with_location(path=f"dataflow.{stage}[{index}]")
    algorithm = run.algorithm
    if algorithm.kl_coef > 0 and algorithm.kl_in == "reward":
        yield ConfigError(
            f"{own.trainer} cannot carry kl_in: reward with kl_coef: {algorithm.kl_coef:g}: a"
            " reward is the mounts' alone, with no KL subtracted from it",
            path="algorithm.kl_in",
            hint=f"leave it out, and set {own.kl}",
        )


def _entry(entry: str | NodeConfig, own: Own) -> ConfigError | None:
    """The error for a node of the dataflow that is no mount, or None."""
    name = entry_name(entry)
    if isinstance(entry, NodeConfig) or name not in _OURS:
        return ConfigError(
            f"{own.trainer} cannot carry the node {name}: nodes run in our own trainer's steps",
            hint=f"leave it out, or {_TRAIN_HERE}",
        )
    if name == "gdpo" and not own.carries_gdpo:
        return ConfigError(
            f"{own.trainer} cannot carry gdpo: it is an advantage estimator, and the advantage is"
            f" {own.trainer}'s own",
            hint=own.gdpo,
        )
    if name == "gae" and not own.critic:
        return ConfigError(
            f"{own.trainer} cannot carry gae: it needs a critic, and {own.trainer} trains none",
            hint=f"leave it out, or {_TRAIN_HERE}",
        )
    return None


def evaluation_refusal(run: RunConfig, trainer: str, hint: str) -> ConfigError | None:
    """The error for an ``eval_reward:`` that differs, in a trainer that does not tell a reward
    whether it evaluates; None where there is none."""
    if run.eval_reward is None or run.eval_rewards() == run.rewards():
        return None
    return ConfigError(
        f"{trainer} cannot carry eval_reward: it does not tell a reward whether a row belongs to"
        " training or to validation",
        path="eval_reward",
        hint=hint,
    )
