"""From the keys of a mount to its runner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_core.config.mount import MountConfig
from verl_core.config.mount_rules import execution_findings
from verl_core.rewards.execution import Limits, Runner, Work, make_runner
from verl_core.rewards.execution.breaker import Breaker
from verl_core.rewards.execution.slots import HostSlots
from verl_core.rewards.execution.work import Build
from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.provider import RewardProvider

if TYPE_CHECKING:
    from verl_core.rewards.execution.recipe import Recipe
    from verl_core.rewards.execution.retry import Retries
    from verl_core.rewards.reload.copies import Taken


def breaker_of(config: MountConfig) -> Breaker | None:
    """The breaker of a mount, which all of its generations share."""
    if config.breaker is None:
        return None
    return Breaker(config.breaker.failures, config.breaker.reset)


def runner_of(
    config: MountConfig,
    provider: RewardProvider[Any],
    build: Build,
    base_dir: Path,
    path: str,
    *,
    breaker: Breaker | None = None,
    taken: Taken | None = None,
) -> Runner:
    """The runner of a mount's generation.

    Args:
        config: the mount's keys; secrets in its `init_kwargs` are known.
        provider: the instance to begin with.
        build: makes a fresh one in its place.
        base_dir: what relative paths in `init_kwargs` count from.
        path: the mount's YAML path.
        breaker: of `breaker_of`.
        taken: the assets' copies that a worker process loads.

    Raises:
        ConfigError: its keys, its execution and its provider do not go together.
    """
    execution = config.execution or provider.execution
    for finding in execution_findings(config, execution):
        where = ".".join((path, *map(str, finding.path)))
        raise ConfigError(finding.message, path=where, hint=finding.hint or None)
    retries = _retries(config)
    work = Work(
        limits=_limits(config),
        workers=config.workers,
        retries=retries,
        breaker=breaker,
        slots=_slots(config, path),
        recipe=_recipe(config, base_dir, retries, taken) if execution == "process" else None,
        secrets=config.secrets,
    )
    return make_runner(
        execution, name=config.name, provider=provider, build=build, work=work, path=path
    )


def _limits(config: MountConfig) -> Limits:
    queue_timeout = config.timeout if config.queue_timeout is None else config.queue_timeout
    return Limits(config.timeout, queue_timeout, config.max_abandoned)


def _retries(config: MountConfig) -> Retries | None:
    if not config.retries:
        return None
    from verl_core.rewards.execution.retry import Retries  # tenacity

    return Retries(
        config.retries,
        config.retry_wait,
        config.timeout,
        name=config.name,
        secrets=config.secrets,
    )


def _slots(config: MountConfig, path: str) -> HostSlots | None:
    if config.host is None:
        return None
    try:
        return HostSlots(config.host.name, config.host.concurrency)
    except ConfigError as error:
        raise error.with_location(path=f"{path}.host") from error


def _recipe(
    config: MountConfig, base_dir: Path, retries: Retries | None, taken: Taken | None
) -> Recipe | None:
    """How a worker process makes the provider: by its plugin's name, and the config as written."""
    if config.plugin is None:
        return None
    from verl_core.rewards.execution.process_worker import provider_of_plugin
    from verl_core.rewards.execution.recipe import Recipe

    args = (config.plugin, config.init_kwargs, base_dir.absolute(), taken)
    return Recipe(config.name, provider_of_plugin, args, retries)
