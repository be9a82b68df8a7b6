"""Retries of a call that failed, inside its deadline; tenacity does the counting and waiting.

Tried again is what may pass: a `ProviderError` with a true attribute ``retryable``, an `OSError`, a
timeout of the provider's own. Never what will be the same next time: a `ContractError`, a
`ConfigError`, any other exception. An attribute ``retry_after`` (seconds, as an HTTP server asks
for) is waited for to the full, or the call fails at once where the deadline comes first.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tenacity

from verl_core.config.limits import MAX_RETRY_WAIT
from verl_core.config.secrets import without
from verl_core.rewards.raised import told
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, ContractError, ProviderError

logger = logging.getLogger(__name__)

_PASSING = (OSError, TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)


@dataclass(frozen=True)
class Retries:
    """How often, and after what pause, a call is tried again.

    Args:
        retries: how often after the first try.
        wait: seconds before the first retry; doubled each time, and up to as much again at random.
        timeout: the call's deadline, in seconds from its start: no retry begins after it.
        max_wait: the longest such pause, in seconds.
        name: the mount's name, for the log.
        secrets: texts that the log must not show.
    """

    retries: int
    wait: float = 0.5
    timeout: float = 60.0
    max_wait: float = MAX_RETRY_WAIT
    name: str = ""
    secrets: tuple[str, ...] = ()


def is_retryable(error: BaseException) -> bool:
    """Whether `error` may pass when the same is tried again."""
    if isinstance(error, ContractError | ConfigError):
        return False
    if isinstance(error, ProviderError):
        return bool(getattr(error, "retryable", False))
    return isinstance(error, _PASSING)


def retrying(score: Callable[[RewardBatch], Any], how: Retries) -> Callable[[RewardBatch], Any]:
    """`score`, tried again where it raises what may pass; a coroutine function stays one.

    The last error is raised as it is.
    """
    if inspect.iscoroutinefunction(score):

        async def score_async(batch: RewardBatch) -> Any:
            return await tenacity.AsyncRetrying(**_settings(how))(score, batch)

        return score_async

    def score_sync(batch: RewardBatch) -> Any:
        return tenacity.Retrying(**_settings(how))(score, batch)

    return score_sync


def _settings(how: Retries) -> dict[str, Any]:
    """For one call: tenacity's objects keep the state of the call that they serve."""
    doubled = tenacity.wait_exponential(multiplier=how.wait, max=how.max_wait)
    at_random = tenacity.wait_random(0.0, how.wait)

    def pause(state: tenacity.RetryCallState) -> float:
        asked = _retry_after(_error_of(state))
        if asked is not None:
            return asked
        return float(min(how.max_wait, doubled(state) + at_random(state)))

    def tell(state: tenacity.RetryCallState) -> None:
        error = _error_of(state)
        logger.info(
            "mount %s: try %d of %d failed, the next in %.2f s: %s",
            how.name,
            state.attempt_number,
            how.retries + 1,
            state.upcoming_sleep,
            "" if error is None else without(told(error), how.secrets),
        )

    enough = tenacity.stop_after_attempt(how.retries + 1)
    return {
        "retry": tenacity.retry_if_exception(is_retryable),
        "stop": tenacity.stop_any(enough, tenacity.stop_before_delay(how.timeout)),
        "wait": pause,
        "before_sleep": tell,
        "reraise": True,
    }


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


def _retry_after(error: BaseException | None) -> float | None:
    """The seconds that `error` asks to wait, where they are a number >= 0."""
    asked = getattr(error, "retry_after", None)
    if isinstance(asked, bool) or not isinstance(asked, int | float):
        return None
    return float(asked) if math.isfinite(asked) and asked >= 0 else None
