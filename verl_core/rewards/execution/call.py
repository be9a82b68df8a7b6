"""A batch on its way through a provider, and how to wait for several."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from verl_core.rewards.raised import told
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ProviderError, ProviderTimeout

if TYPE_CHECKING:
    from verl_core.rewards.cache import Split


@dataclass(frozen=True)
class Limits:
    """How long a mount may take.

    Args:
        timeout: seconds from the start of execution.
        queue_timeout: seconds it may wait for that start.
        max_abandoned: so many hung threads, and the mount fails at once.
    """

    timeout: float = 60.0
    queue_timeout: float = 60.0
    max_abandoned: int = 3


class NotBegun(ProviderTimeout):
    """The call waited for longer than its `queue_timeout`."""


class WorkerLost(ProviderError):
    """The worker process of the call ended without an answer."""


class Settled(Future[object]):
    """A future for work that is done before anybody else hears of it: no lock, and nobody can wait.

    Its methods are those that calls need; they mean what `Future`'s do.
    """

    def __init__(self) -> None:  # not the base's, which makes a lock and a condition
        self._ended = False
        self._answer: object = None
        self._error: BaseException | None = None
        self._after: list[Callable[[Future[object]], object]] = []

    def done(self) -> bool:
        return self._ended

    def result(self, timeout: float | None = None) -> object:
        if self._error is not None:
            raise self._error
        return self._answer

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._error

    def set_result(self, result: object) -> None:
        self._end(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        self._end(None, exception)

    def add_done_callback(self, fn: Callable[[Future[object]], object]) -> None:
        if self._ended:
            fn(self)
        else:
            self._after.append(fn)

    def _end(self, answer: object, error: BaseException | None) -> None:
        if self._ended:
            raise InvalidStateError
        self._ended, self._answer, self._error = True, answer, error
        for each in self._after:
            each(self)


class Call:
    """One batch that was given to a runner. It ends once: with an answer or with an error.

    Args:
        batch: the rows.
        limits: its deadlines.
        runner: who works on it; `tend` ends calls whose deadline has passed.
        future: how it ends; by default one that can be waited for.

    `split` is what a cache knew of the rows that the mount was asked about, where it has one:
    `batch` holds the others only.
    """

    def __init__(
        self,
        batch: RewardBatch,
        limits: Limits,
        runner: Runner,
        future: Future[object] | None = None,
    ) -> None:
        self.batch = batch
        self.limits = limits
        self.runner = runner
        self.future: Future[object] = Future() if future is None else future
        self.queued = monotonic()
        self.started: float | None = None
        self.ended: float | None = None
        self.split: Split | None = None
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """Start the clock. False where the call has ended before it began."""
        with self._lock:
            if self.future.done():
                return False
            self.started = monotonic()
            return True

    def succeed(self, answer: object) -> None:
        """End with the provider's answer; too late, it is dropped."""
        with self._lock:
            try:
                self.future.set_result(answer)
            except InvalidStateError:
                return
            self.ended = monotonic()

    def fail(self, error: BaseException) -> None:
        """End with an error; too late, it is dropped."""
        with self._lock:
            try:
                self.future.set_exception(error)
            except InvalidStateError:
                return
            self.ended = monotonic()

    @property
    def done(self) -> bool:
        return self.future.done()

    @property
    def seconds(self) -> float:
        """How long it was executed; 0.0 where it never began."""
        if self.started is None or self.ended is None:
            return 0.0
        return self.ended - self.started

    def overdue(self, now: float) -> bool:
        """Whether one of its deadlines has passed."""
        if self.started is None:
            return now >= self.queued + self.limits.queue_timeout
        return now >= self.started + self.limits.timeout

    def pause(self, now: float) -> float:
        """Seconds after which a waiter must look again, lest it oversleep a deadline.

        A call that still waits may begin at any moment, so no longer than `timeout`.
        """
        if self.started is None:
            queue = self.queued + self.limits.queue_timeout - now
            return max(0.0, min(queue, self.limits.timeout))
        return max(0.0, self.started + self.limits.timeout - now)


class Runner(Protocol):
    """Where a provider runs."""

    @property
    def exhausted(self) -> bool:
        """Whether it refuses every further call."""
        ...

    def setup(self) -> None:
        """Load the provider. Raises whatever it raises."""
        ...

    def submit(self, batch: RewardBatch) -> Call:
        """Start scoring `batch`, or put it in line."""
        ...

    def tend(self, now: float) -> None:
        """End what is overdue."""
        ...

    def cancel(self, call: Call) -> None:
        """Nobody waits for `call` any more."""
        ...

    def close(self) -> None:
        """Release the provider, as far as nothing hangs."""
        ...

    def describe(self) -> dict[str, Any]:
        """``workers`` (the most calls at once, None: as many as callers), ``restarts`` (providers
        that were built in the place of another), and what else is to be seen; JSON-ready."""
        ...


def wait_loaded(ready: Future[None]) -> None:
    """Wait for a set-up in another thread, and raise what it raised.

    What is no `Exception` comes as a `ProviderError`: a `KeyboardInterrupt` of the provider's own
    would pass for Ctrl-C here. A real one, while it waits, is raised as it is.
    """
    error = ready.exception()
    if error is None:
        return
    if isinstance(error, Exception):
        raise error
    raise ProviderError(told(error)) from error


def wait_any(calls: Sequence[Call]) -> list[Call]:
    """Block until at least one of `calls` has ended; those that have."""
    while True:
        finished = [call for call in calls if call.done]
        if finished:
            return finished
        wait([call.future for call in calls], tend(calls), return_when=FIRST_COMPLETED)


class Bell:
    """Wakes a coroutine, on whatever event loop it runs, when a call ends in some thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def hang_on(self, call: Call) -> None:
        """Ring when `call` ends."""
        call.future.add_done_callback(self._ring)

    def _ring(self, _: Future[object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait_any(self, calls: Sequence[Call]) -> list[Call]:
        """`wait_any` without blocking the loop; this bell must hang on each of `calls`."""
        while True:
            self._event.clear()
            finished = [call for call in calls if call.done]
            if finished:
                return finished
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._event.wait(), tend(calls))


def tend(calls: Sequence[Call]) -> float:
    """End what is overdue; seconds until somebody must look again."""
    now = monotonic()
    for runner in {id(call.runner): call.runner for call in calls}.values():
        runner.tend(now)
    return min((call.pause(now) for call in calls if not call.done), default=0.0)
