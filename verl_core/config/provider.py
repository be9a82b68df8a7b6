"""A mount's `init_kwargs` as its plugin's typed config."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from verl_core.config.mount import MountConfig
from verl_core.config.places import error_at
from verl_core.config.problems import combined, problems_of
from verl_core.config.tree import Node, Origin, YamlPath, wrap
from verl_reward_sdk.errors import ConfigError


def provider_config(
    model: type[BaseModel],
    mount: MountConfig,
    base_dir: Path,
    *,
    root: Node | None = None,
    at: YamlPath = (),
) -> BaseModel:
    """The typed config of a mount's provider.

    Args:
        model: the provider's `Config`.
        mount: whose `init_kwargs` are read.
        base_dir: what relative paths count from.
        root: the tree of the YAML, if errors are to name line and column.
        at: where the mount lies in it.

    Raises:
        ConfigError: all that is wrong, each with its YAML path: ``reward.tone.init_kwargs.rules``.
    """
    if root is None:
        written = {"name": mount.name, "init_kwargs": mount.init_kwargs}
        root, at = wrap({"reward": [written]}, Origin(None)), ("reward", 0)
    path = (*at, "init_kwargs")
    try:
        return model.model_validate(mount.init_kwargs, context={"base_dir": base_dir})
    except ValidationError as error:
        problems = problems_of(error, model, root, path)
    except ConfigError as error:
        problems = [error]
    except Exception as error:  # noqa: BLE001  (the boundary to a plugin's validators)
        message = f"the plugin's config raised {type(error).__name__}: {error}"
        problems = [ConfigError(message, hint="this is a fault of the plugin")]
    place = error_at(root, path, "")
    raise combined(
        [
            problem.with_location(
                file=place.file, line=place.line, column=place.column, path=place.path
            )
            for problem in problems
        ]
    )
