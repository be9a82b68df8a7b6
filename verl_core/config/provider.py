"""A mount's `init_kwargs` as its plugin's typed config."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from verl_core.config.mount import MountConfig
from verl_core.config.places import error_at
from verl_core.config.problems import combined, problems_of
from verl_core.config.secrets import MARK, secret_paths, texts_at, without
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
    mount.hide(secret_paths(model, mount.init_kwargs))
    _hide(mount, root, path)
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
            _discreet(problem, mount.secrets).with_location(
                file=place.file, line=place.line, column=place.column, path=place.path
            )
            for problem in problems
        ]
    )


def _hide(mount: MountConfig, root: Node, at: YamlPath) -> None:
    """Keep the mount's secrets out of errors that point into the tree.

    Raises:
        ConfigError: a secret was left out when this config was written.
    """
    for path in mount.secret_paths:
        node, depth = root.find((*at, *path))
        if depth == len(at) + len(path):
            node.written = "a value that is not shown"
        if MARK in texts_at(mount.init_kwargs, [path]):
            message = "a secret stood here, and was left out when this file was written"
            raise error_at(root, (*at, *path), message, hint="give it again, here or as key=value")


def _discreet(problem: ConfigError, secrets: tuple[str, ...]) -> ConfigError:
    """`problem` without secrets, which a plugin's own validator may have put into its words."""
    problem.message = without(problem.message, secrets)
    problem.hint = None if problem.hint is None else without(problem.hint, secrets)
    return problem
