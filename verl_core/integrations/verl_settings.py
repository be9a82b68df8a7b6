"""What verl's config says to our manager: ``reward.reward_kwargs.verl_reward``, and what it may not
say beside it. Nothing here imports verl."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from verl_core.config.base import Items, Model
from verl_core.config.problems import combined, problems_of
from verl_core.config.run import RunConfig
from verl_core.config.tree import Origin, wrap
from verl_core.integrations.fitting import read_run
from verl_reward_sdk.errors import ConfigError

CONFIG_VARIABLE = "VERL_REWARD_CONFIG"
#: Where they stand in verl's config.
SETTINGS = ("reward", "reward_kwargs", "verl_reward")


class Settings(Model):
    """``reward.reward_kwargs.verl_reward`` of verl's config."""

    config: str | None = None
    """The YAML with `reward:` and `fusion:`; by default what ``VERL_REWARD_CONFIG`` names. An
    absolute path: verl's workers may run in other folders, and on other machines."""
    overrides: Items[str] = ()
    """``key=value`` settings that win over the file's: ``[reward.tone.weight=2]``."""
    weights: str | None = None
    """A ``weights.db`` file that keeps the weights of this run for all workers."""


def refuse_rivals(config: Any) -> None:
    """Raise `ConfigError` for settings of verl's under which our manager is not asked, or is asked
    in vain."""
    reward = None if config is None else config.get("reward")
    if reward is None:
        return
    function = (reward.get("custom_reward_function") or {}).get("path")
    if function is not None:
        raise ConfigError(
            f"verl's config names a reward function beside this manager: {function}",
            path="reward.custom_reward_function.path",
            hint="this manager scores with the mounts of its YAML: leave it out",
        )
    if (reward.get("reward_model") or {}).get("enable"):
        raise ConfigError(
            "with a reward model of its own, verl never asks this manager",
            path="reward.reward_model.enable",
            hint="leave it out, and mount the model in the YAML",
        )


def read_settings(config: Any) -> Settings:
    """The settings in verl's config, or in the environment.

    Args:
        config: verl's, or None.

    Raises:
        ConfigError: they cannot be used, or name no YAML.
    """
    node = config
    for key in SETTINGS:
        node = None if node is None else node.get(key)
    given = {} if node is None else _container(node)
    root = wrap({"reward": {"reward_kwargs": {"verl_reward": given}}}, Origin(None))
    try:
        settings = Settings.model_validate(given)
    except ValidationError as error:
        raise combined(problems_of(error, Settings, root, SETTINGS)) from error
    if settings.config is None:
        named = os.environ.get(CONFIG_VARIABLE)
        if not named:
            raise ConfigError(
                "nothing says which YAML holds the rewards",
                path=".".join(SETTINGS) + ".config",
                hint="+reward.reward_kwargs.verl_reward.config=/path/of/run.yaml, or"
                f" {CONFIG_VARIABLE} in the environment",
            )
        settings = settings.model_copy(update={"config": named})
    return settings


def _container(node: Any) -> Any:
    if isinstance(node, dict):
        return node
    from omegaconf import OmegaConf

    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def load(settings: Settings) -> RunConfig:
    """The YAML that the settings name.

    Raises:
        ConfigError: it is not there, or cannot be used.
    """
    path = Path(settings.config or "").expanduser()
    if not path.is_file():
        raise ConfigError(
            f"there is no such file: {path} (seen from {Path.cwd()})",
            path=".".join(SETTINGS) + ".config",
            hint="give an absolute path that every machine of the run can read",
        )
    return read_run(path, settings.overrides)


def response_limit(config: Any) -> int | None:
    """verl's longest response in tokens, where its config says."""
    node = config
    for key in ("actor_rollout_ref", "rollout"):
        node = None if node is None else node.get(key)
    limit = None if node is None else node.get("response_length")
    return None if limit is None else int(limit)
