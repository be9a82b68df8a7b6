"""Where a provider runs, one place a file.

A `Runner` takes batches and gives `Call` objects, which end by an answer, an error or a deadline.
"""

from __future__ import annotations

import inspect
from typing import Any

from verl_core.rewards.execution.asynchronous import AsyncRunner
from verl_core.rewards.execution.breaker import GuardedRunner
from verl_core.rewards.execution.call import Bell, Call, Limits, Runner, wait_any
from verl_core.rewards.execution.held import HeldRunner
from verl_core.rewards.execution.inline import InlineRunner
from verl_core.rewards.execution.thread import ThreadRunner
from verl_core.rewards.execution.work import Build, Work
from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.provider import RewardProvider

LATER = ("ray",)


def make_runner(
    execution: str,
    *,
    name: str,
    provider: RewardProvider[Any],
    build: Build,
    work: Work,
    path: str,
) -> Runner:
    """The runner for `execution`, behind the breaker of `work`.

    Args:
        execution: ``inline | async | thread | process``.
        name: the mount's name.
        provider: the instance to begin with; `process` looks at it only.
        build: makes a fresh one in its place.
        work: how calls are made.
        path: the mount's YAML path, for errors.

    Raises:
        ConfigError: the provider cannot run there, or it is a place of a later release.
    """
    _check(execution, provider, work, path)
    runner: Runner
    if execution == "inline":
        runner = InlineRunner(name, provider, work.limits)
    elif execution == "async":
        runner = HeldRunner(AsyncRunner(name, provider, build, work))
    elif execution == "thread":
        runner = HeldRunner(ThreadRunner(name, provider, build, work))
    else:
        runner = HeldRunner(_process(work, path))
    return runner if work.breaker is None else GuardedRunner(runner, work.breaker, work.limits)


def _process(work: Work, path: str) -> Runner:
    if work.recipe is None:
        raise ConfigError(
            "its provider cannot be made in another process",
            path=f"{path}.execution",
            hint="write thread, or make it a plugin",
        )
    from verl_core.rewards.execution.process import ProcessRunner  # psutil, subprocess

    try:
        return ProcessRunner(
            work.recipe,
            work.limits,
            workers=work.workers or 1,
            slots=work.slots,
            secrets=work.secrets,
        )
    except ConfigError as error:
        raise error.with_location(path=path) from error


def _check(execution: str, provider: RewardProvider[Any], work: Work, path: str) -> None:
    where = f"{path}.execution"
    if execution in LATER:
        raise ConfigError(
            f"execution: {execution} comes with a later release",
            path=where,
            hint="this one has inline, async, thread and process",
        )
    if execution not in ("inline", "async", "thread", "process"):
        hint = "inline, async, thread or process"
        raise ConfigError(f"unknown execution {execution!r}", path=where, hint=hint)
    who = type(provider).__name__
    coroutines = inspect.iscoroutinefunction(provider.score)
    if coroutines != (execution == "async"):
        what = "is made of coroutines" if coroutines else "is not made of coroutines"
        right = "async" if coroutines else "inline, thread or process"
        raise ConfigError(
            f"execution: {execution}, but {who} {what}", path=where, hint=f"write {right}"
        )
    if execution == "thread" and (work.workers or 1) > 1 and not provider.thread_safe:
        raise ConfigError(
            f"{who} is not thread safe: one call at a time",
            path=f"{path}.workers",
            hint="execution: process gives each worker a provider of its own",
        )
    if execution == "process" and type(provider).state is not RewardProvider.state:
        raise ConfigError(
            f"{who} learns while it runs, and what it learns would end with its worker",
            path=where,
            hint="write inline or thread",
        )


__all__ = ["Bell", "Call", "Limits", "Runner", "Work", "make_runner", "wait_any"]
