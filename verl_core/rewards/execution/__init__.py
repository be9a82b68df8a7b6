"""Where a provider runs, one place a file.

A `Runner` takes batches and gives `Call` objects, which end by an answer, an error or a deadline.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from verl_core.rewards.execution.asynchronous import AsyncRunner
from verl_core.rewards.execution.call import Bell, Call, Limits, Runner, wait_any
from verl_core.rewards.execution.inline import InlineRunner
from verl_core.rewards.execution.thread import ThreadRunner
from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.provider import RewardProvider

LATER = ("process", "ray")


def make_runner(
    execution: str,
    *,
    name: str,
    provider: RewardProvider[Any],
    build: Callable[[], RewardProvider[Any]],
    limits: Limits,
    path: str,
) -> Runner:
    """The runner for `execution`.

    Args:
        execution: ``inline | async | thread``.
        name: the mount's name.
        provider: the instance to begin with.
        build: makes a fresh one in its place.
        limits: its deadlines.
        path: YAML path of the mount's `execution`, for errors.

    Raises:
        ConfigError: the provider cannot run there, or it is a place of a later release.
    """
    if execution in LATER:
        raise ConfigError(
            f"execution: {execution} comes with a later release",
            path=path,
            hint="this one has inline, async and thread",
        )
    coroutines = inspect.iscoroutinefunction(provider.score)
    if coroutines != (execution == "async"):
        what = "is made of coroutines" if coroutines else "is not made of coroutines"
        right = "async" if coroutines else "inline or thread"
        raise ConfigError(
            f"execution: {execution}, but {type(provider).__name__} {what}",
            path=path,
            hint=f"write {right}",
        )
    if execution == "inline":
        return InlineRunner(name, provider, limits)
    if execution == "async":
        return AsyncRunner(name, provider, build, limits)
    if execution == "thread":
        return ThreadRunner(name, provider, build, limits)
    raise ConfigError(f"unknown execution {execution!r}", path=path, hint="inline, async or thread")


__all__ = ["Bell", "Call", "Limits", "Runner", "make_runner", "wait_any"]
