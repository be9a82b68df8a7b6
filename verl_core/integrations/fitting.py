"""A config made to fit another trainer: what it asks for by name is refused, defaults are replaced.

Asked for is what stands in the YAML, or was given to the model in Python; a default is what does
not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_core.config.document import load_yaml
from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.config.run import RunConfig, load_run_config
from verl_core.rewards.engine import RewardEngine
from verl_reward_sdk.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardSets:
    """What training and what evaluation scores by.

    Args:
        train: the mounts and the fusion.
        evaluation: those of `eval_reward:`; by default `train`.
        run: the run that they were read from; None where they came as a `RewardsConfig`.
    """

    train: RewardsConfig
    evaluation: RewardsConfig
    run: RunConfig | None = None

    @property
    def same(self) -> bool:
        """Whether both score by the same mounts, fused alike."""
        return self.train == self.evaluation


def read_rewards(
    source: str | Path | RunConfig | RewardsConfig, overrides: Sequence[str] = ()
) -> RewardSets:
    """The reward sets of a run's YAML, of one that says no more than its rewards, or of a config.

    Args:
        source: a YAML file (``model:`` and ``data:`` may be left out), or what was read from one.
        overrides: ``key=value`` that win over the file's.

    Raises:
        ConfigError: the file cannot be used; it names line and column.
    """
    if isinstance(source, RewardsConfig):
        return RewardSets(source, source)
    run = source if isinstance(source, RunConfig) else read_run(Path(source), overrides)
    return RewardSets(run.rewards(), run.eval_rewards(), run)


def read_run(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """A run's YAML, or one that says no more than its rewards.

    Args:
        path: the file; ``model:`` and ``data:`` may be left out.
        overrides: ``key=value`` that win over the file's.

    Raises:
        ConfigError: the file cannot be used; it names line and column.
    """
    tree = load_yaml(path)
    given = tree.value if isinstance(tree.value, dict) else {}
    # The other trainer has a model and data of its own: where the file names none, any will do.
    needed = {"model": "model.path=none", "data": "data.train=none"}
    return load_run_config(path, [*(v for k, v in needed.items() if k not in given), *overrides])


def asks(mount: MountConfig, key: str) -> bool:
    """Whether the config asks for this `key` of `mount` by name."""
    return key in mount.model_fields_set


def refused(mount: MountConfig, key: str, trainer: str, reason: str, hint: str) -> ConfigError:
    """The error for a key that `trainer` cannot carry."""
    return ConfigError(
        f"{trainer} cannot carry {key}: {shown(getattr(mount, key))}: {reason}",
        path=f"reward.{mount.name}.{key}",
        hint=hint,
    )


def refuse_nodes(rewards: RewardsConfig, trainer: str) -> None:
    """Raise `ConfigError` for a mount that only our own trainer can run."""
    for mount in rewards.mounts:
        if mount.node_class is not None:
            raise ConfigError(
                f"{trainer} cannot carry node_class: {mount.node_class}: a RewardNode reads the"
                " step's tensors, which no other trainer hands to a reward",
                path=f"reward.{mount.name}.node_class",
                hint="score by a plugin, or train with verl-reward train",
            )


def learns(policy: object) -> bool:
    """Whether a fusion policy, or its class, is told of the end of each step."""
    return hasattr(policy, "step_end")


def needs_groups(policy: object) -> bool:
    """Whether a fusion policy, or its class, compares the responses of a group."""
    return bool(getattr(policy, "needs_groups", False))


def shown(value: object) -> str:
    """A key's value as YAML would write it, for messages."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def replaced(rewards: RewardsConfig, changes: Mapping[str, Mapping[str, Any]]) -> RewardsConfig:
    """`rewards` with other values for keys that nobody wrote.

    Args:
        changes: mount -> key -> value.
    """
    if not any(changes.values()):
        return rewards
    mounts = tuple(_with(mount, changes.get(mount.name, {})) for mount in rewards.mounts)
    return rewards.model_copy(update={"mounts": mounts})


def _with(mount: MountConfig, values: Mapping[str, Any]) -> MountConfig:
    if not values:
        return mount
    changed = mount.model_copy(update=dict(values))
    # A default that was replaced is still none that was asked for.
    changed.model_fields_set.difference_update(values)
    return changed


def token_notes(engine: RewardEngine, trainer: str) -> list[str]:
    """What is to be said of mounts that score tokens, to a trainer that takes a number a row."""
    names = [name for name, mount in engine.mounts.items() if mount.provider.token_scores]
    if not names:
        return []
    return [f"token scores of {', '.join(names)} count by their sum: {trainer} takes one a row"]


def say(trainer: str, notes: Iterable[str]) -> None:
    """Log, once, what was replaced or is carried in another way."""
    for note in dict.fromkeys(notes):
        logger.warning("%s: %s", trainer, note)
