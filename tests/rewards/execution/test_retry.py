"""What is tried again, how often, and until when."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from verl_core.rewards.execution.retry import Retries, is_retryable, retrying
from verl_reward_sdk import ConfigError, ContractError, ProviderError, ProviderTimeout


def flagged(message: str = "busy", *, retryable: bool = True, **attributes: Any) -> ProviderError:
    error = ProviderError(message)
    error.__dict__.update(attributes, retryable=retryable)
    return error


def fails(times: int, error: Callable[[], BaseException]) -> tuple[Any, list[float]]:
    """A score function that raises so many times, and the moments of its calls."""
    calls: list[float] = []

    def score(batch: object) -> list[float]:
        calls.append(monotonic())
        if len(calls) <= times:
            raise error()
        return [float(len(calls))]

    return score, calls


def asynchronous(score: Any) -> Any:
    async def later(batch: object) -> Any:
        await asyncio.sleep(0)
        return score(batch)

    return later


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (flagged(), True),
        (flagged(retryable=False), False),
        (ProviderError("no flag"), False),
        (ProviderTimeout("no flag"), False),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (asyncio.TimeoutError(), True),
        (ValueError(), False),
        (ContractError("x", provider="m"), False),
        (ConfigError("x"), False),
        (asyncio.CancelledError(), False),
        (SystemExit(), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error, again):
    assert is_retryable(error) is again
    score, calls = fails(1, lambda: error)
    tried = retrying(score, Retries(1, wait=0.001))
    if again:
        assert tried(None) == [2.0]
    else:
        with pytest.raises(type(error)) as raised:
            tried(None)
        assert raised.value is error
        assert len(calls) == 1


def test_a_contract_error_is_never_tried_again_even_if_it_says_so():
    error = ContractError("x", provider="m")
    error.retryable = True  # type: ignore[attr-defined]
    assert not is_retryable(error)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_after_the_last_retry_the_last_error_is_raised_as_it_is(kind):
    score, calls = fails(99, lambda: flagged(f"number {len(calls)}"))
    tried = retrying(score if kind == "sync" else asynchronous(score), Retries(2, wait=0.001))
    assert inspect.iscoroutinefunction(tried) is (kind == "async")
    with pytest.raises(ProviderError, match=r"^number 3$"):
        tried(None) if kind == "sync" else asyncio.run(tried(None))
    assert len(calls) == 3


def test_calls_at_once_on_one_loop_count_their_own_retries():
    scores = [fails(times, ConnectionError) for times in (0, 1, 2, 3)]

    async def several():
        how = Retries(3, wait=0.001)
        return await asyncio.gather(
            *(retrying(asynchronous(score), how)(None) for score, _ in scores)
        )

    assert asyncio.run(several()) == [[1.0], [2.0], [3.0], [4.0]]


def test_retry_after_is_waited_for_to_the_full():
    score, calls = fails(1, lambda: flagged(retry_after=0.3))
    assert retrying(score, Retries(1, wait=0.001, max_wait=0.001))(None) == [2.0]
    assert calls[1] - calls[0] >= 0.3


@pytest.mark.parametrize("odd", [-1, float("nan"), float("inf"), "soon", True, None])
def test_a_retry_after_that_is_no_number_of_seconds_is_passed_over(odd):
    score, _ = fails(1, lambda: flagged(retry_after=odd))
    assert retrying(score, Retries(1, wait=0.001))(None) == [2.0]


def test_no_retry_begins_after_the_deadline():
    score, calls = fails(99, lambda: flagged(retry_after=3600))
    with pytest.raises(ProviderError, match="busy"):
        retrying(score, Retries(5, timeout=30.0))(None)
    assert len(calls) == 1
    score, calls = fails(99, lambda: flagged())
    with pytest.raises(ProviderError, match="busy"):
        retrying(score, Retries(10**6, wait=0.01, max_wait=0.01, timeout=0.3))(None)
    assert 1 <= len(calls) < 100  # of a million: the deadline ended it
