"""A circuit breaker: after so many failed calls in a row, no more for a while.

Closed, it lets every call through. After `failures` in a row it opens, and refuses calls at once.
After `reset` seconds it is half open: one call goes through, and its end decides. An end counts for
the state in which its call was let through; one that comes later changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any, Literal

from verl_core.rewards.execution.call import Call, Limits, Runner
from verl_core.rewards.raised import told
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ContractError, ProviderError, VerlRewardError

State = Literal["closed", "open", "half-open"]


class BreakerOpen(ProviderError):
    """The call was not made: too many before it failed."""


class Breaker:
    """Counts failed calls in a row. From any thread.

    Args:
        failures: so many in a row open it.
        reset: seconds until it is half open.
        clock: a clock that only grows, in seconds.

    Raises:
        ValueError: `failures` is less than 1, or `reset` is not above 0.
    """

    def __init__(
        self, failures: int, reset: float, *, clock: Callable[[], float] = monotonic
    ) -> None:
        if failures < 1 or not reset > 0:
            raise ValueError(f"failures >= 1 and reset > 0, not {failures} and {reset}")
        self._allowed = failures
        self._reset = reset
        self._clock = clock
        self._lock = threading.Lock()
        self._round = 0  # changes with the state: a pass counts for the round it was given in
        self._failed = 0
        self._opened: float | None = None
        self._trying = False
        self._reason = ""

    @property
    def state(self) -> State:
        with self._lock:
            if self._opened is None:
                return "closed"
            return "half-open" if self._clock() >= self._opened + self._reset else "open"

    def admit(self) -> Pass:
        """A pass for one call, whose end it must be told.

        Raises:
            BreakerOpen: no call is let through now; it says when one will be.
        """
        with self._lock:
            if self._opened is None:
                return Pass(self, self._round)
            rest = self._opened + self._reset - self._clock()
            if rest <= 0 and not self._trying:
                self._trying = True
                self._round += 1
                return Pass(self, self._round)
            when = "when the call that is tried now has ended"
            if rest > 0:
                when = f"in {rest:.1f} s"
            raise BreakerOpen(
                f"not called: its last {self._failed} calls failed (breaker: failures:"
                f" {self._allowed}, reset: {self._reset:g} s), the last with: {self._reason};"
                f" it is tried again {when}"
            )

    def _end(self, given: int, reason: str | None) -> None:
        """A call of round `given` has ended, with an error where there is a `reason`."""
        with self._lock:
            if given != self._round:
                return
            if reason is None:
                if self._opened is not None:
                    self._round += 1
                self._failed, self._opened, self._trying = 0, None, False
                return
            self._failed += 1
            self._reason = reason
            if self._trying or self._failed >= self._allowed:
                self._opened, self._trying = self._clock(), False
                self._round += 1

    def _drop(self, given: int) -> None:
        with self._lock:
            if given == self._round and self._trying:
                self._trying = False
                self._round += 1


class Pass:
    """One call that was let through. The first of its methods to be called counts."""

    def __init__(self, breaker: Breaker, given: int) -> None:
        self._breaker = breaker
        self._given = given
        self._lock = threading.Lock()
        self._open = True

    def succeeded(self) -> None:
        """The call ended with an answer."""
        if self._first():
            self._breaker._end(self._given, None)

    def failed(self, reason: str) -> None:
        """The call ended with an error."""
        if self._first():
            self._breaker._end(self._given, reason)

    def dropped(self) -> None:
        """Nobody will learn how the call ended."""
        if self._first():
            self._breaker._drop(self._given)

    def _first(self) -> bool:
        with self._lock:
            first, self._open = self._open, False
            return first


class GuardedRunner:
    """A runner behind a breaker. A call that was cancelled tells nothing; one whose answer breaks
    the contract reached the provider, and counts as answered.

    Args:
        runner: who does the work.
        breaker: who lets calls through.
        limits: the mount's deadlines.
    """

    def __init__(self, runner: Runner, breaker: Breaker, limits: Limits) -> None:
        self._runner = self.inner = runner
        self._breaker = breaker
        self._limits = limits
        self._lock = threading.Lock()
        self._passes: dict[Call, Pass] = {}

    @property
    def exhausted(self) -> bool:
        return self._runner.exhausted

    def setup(self) -> None:
        self._runner.setup()

    def submit(self, batch: RewardBatch) -> Call:
        try:
            given = self._breaker.admit()
        except BreakerOpen as refusal:
            call = Call(batch, self._limits, self)
            call.fail(refusal)
            return call
        call = self._runner.submit(batch)
        call.runner = self  # so that a cancellation passes here
        with self._lock:
            self._passes[call] = given
        call.future.add_done_callback(partial(self._ended, call))
        return call

    def tend(self, now: float) -> None:
        self._runner.tend(now)

    def cancel(self, call: Call) -> None:
        with self._lock:
            given = self._passes.get(call)
        if given is not None:
            given.dropped()
        self._runner.cancel(call)

    def close(self) -> None:
        self._runner.close()

    def describe(self) -> dict[str, Any]:
        return {**self._runner.describe(), "breaker": self._breaker.state}

    def _ended(self, call: Call, future: Future[object]) -> None:
        with self._lock:
            given = self._passes.pop(call)
        error = future.exception()
        if error is None or isinstance(error, ContractError):
            given.succeeded()
        else:
            given.failed(str(error) if isinstance(error, VerlRewardError) else told(error))
