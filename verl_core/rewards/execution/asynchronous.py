"""`async`: on a private event loop. For waiting: I/O, judges.

Each mount has a loop in a daemon thread of its own, so that a caller's loop never matters, and a
coroutine that blocks holds up nobody else. At its deadline a call is cancelled. A loop that is
blocked cannot cancel anything: once a call has waited for its start in vain, the instance is
abandoned, and a fresh one is built, as for `thread`.

asyncio ends a loop where a task raises `SystemExit` or `KeyboardInterrupt`. Here either only fails
the call (or the set-up) that raised it; what a task of the provider's own raises is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from time import monotonic
from typing import Any

from verl_core.rewards.execution.call import Call, wait_loaded
from verl_core.rewards.execution.slots import HostSlots, Slot
from verl_core.rewards.execution.work import Build, Score, Work, scorer
from verl_core.rewards.raised import told
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ProviderError, ProviderTimeout
from verl_reward_sdk.provider import RewardProvider

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_WIDTH = 64


class _Instance:
    """One provider and the loop it lives on."""

    def __init__(self, name: str, build: Build, work: Work) -> None:
        self._name = name
        self._build = build
        self._retries = work.retries
        self._stopped = False
        self.provider: RewardProvider[Any] | None = None
        self.score: Score | None = None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name=f"reward-{name}", daemon=True)
        self.thread.start()
        self.ready: Future[None] = asyncio.run_coroutine_threadsafe(self._setup(), self.loop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._turn()
            for task in (tasks := asyncio.all_tasks(self.loop)):
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self.loop.close()

    def _turn(self) -> None:
        """Run the loop until `stop`, whatever a task of the provider's own raises out of it."""
        while not self._stopped:
            try:
                self.loop.run_forever()
            except BaseException:  # a boundary: nobody can be told but the log
                logger.exception("mount %s: a task of its own failed", self._name)

    async def _setup(self) -> None:
        with _contained():
            self.provider = self._build()
            await awaited(self.provider.setup)
            self.score = scorer(self.provider, self._retries)

    async def close(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        if self.provider is not None:
            with _contained():
                await awaited(self.provider.close)

    def stop(self) -> None:
        self._stopped = True
        with contextlib.suppress(RuntimeError):  # it was stopped before
            self.loop.call_soon_threadsafe(self.loop.stop)


@dataclass
class _Flight:
    """A call that was handed to a loop.

    Args:
        instance: whose loop.
        task: the coroutine's.
        seen: the loop has turned since: what holds the call up now is not the loop.
        slot: of its host.
    """

    instance: _Instance
    task: Future[None] | None = None
    seen: bool = False
    slot: Slot | None = None

    def end(self) -> None:
        """Give back its slot; the second time does nothing."""
        if self.slot is not None:
            self.slot.release()

    def cancel(self) -> None:
        """Give up; a loop that is blocked does so when it turns again."""
        self.end()
        if self.task is not None:
            self.task.cancel()


class AsyncRunner:
    """Runs a provider whose methods are coroutines, up to `workers` (64) calls at once.

    Args:
        name: the mount's name, for messages and thread names.
        first: the provider to begin with.
        build: makes a fresh one.
        work: how calls are made.
    """

    def __init__(self, name: str, first: RewardProvider[Any], build: Build, work: Work) -> None:
        self._name = name
        self._build = build
        self._how = work
        self._limits = work.limits
        self._slots: HostSlots | None = work.slots
        self._width = work.workers or _WIDTH
        self._lock = threading.Lock()
        self._first: RewardProvider[Any] | None = first
        self._instance: _Instance | None = None
        self._abandoned: list[_Instance] = []
        self._queue: deque[Call] = deque()
        self._calls: dict[Call, _Flight] = {}
        self._restarts = 0
        self._closed = False

    @property
    def exhausted(self) -> bool:
        with self._lock:
            return self._blocked() >= self._limits.max_abandoned

    def setup(self) -> None:
        with self._lock:
            instance = self._current()
        try:
            wait_loaded(instance.ready)
        except BaseException:
            self._drop(instance)
            raise

    def submit(self, batch: RewardBatch) -> Call:
        call = Call(batch, self._limits, self)
        with self._lock:
            if self._closed:
                call.fail(ProviderError("the mount was closed"))
            else:
                self._queue.append(call)
                self._feed()
        return call

    def tend(self, now: float) -> None:
        with self._lock:
            for call, flight in list(self._calls.items()):
                if call.overdue(now):
                    del self._calls[call]
                    self._expire(call, flight)
            for call in [call for call in self._queue if call.overdue(now)]:
                self._queue.remove(call)
                call.fail(
                    ProviderTimeout(
                        f"not begun within queue_timeout: {self._limits.queue_timeout:g} s:"
                        f" {len(self._calls)} calls are under way (workers: {self._width})"
                    )
                )
            self._feed()

    def cancel(self, call: Call) -> None:
        with self._lock:
            flight = self._calls.pop(call, None)
            if call in self._queue:
                self._queue.remove(call)
            call.fail(ProviderError("cancelled by its caller"))
            if flight is not None:
                flight.cancel()
            self._feed()

    def describe(self) -> dict[str, Any]:
        return {"workers": self._width, "restarts": self._restarts}

    def close(self) -> None:
        with self._lock:
            self._closed = True
            instance, self._instance = self._instance, None
            flights, self._calls = self._calls, {}
            for call in (*self._queue, *flights):
                call.fail(ProviderError("the mount was closed"))
            self._queue.clear()
        for flight in flights.values():
            flight.end()
        if instance is None:
            return
        closing = asyncio.run_coroutine_threadsafe(instance.close(), instance.loop)
        try:
            closing.result(_CLOSE_SECONDS)
        except FutureTimeout:
            logger.warning("mount %s: close() took over %g s", self._name, _CLOSE_SECONDS)
        except Exception:  # a boundary: nobody can be told but the log
            logger.exception("mount %s: close() failed", self._name)
        instance.stop()
        instance.thread.join(_CLOSE_SECONDS)

    # -- inside; the lock is held ------------------------------------------------------------------

    def _feed(self) -> None:
        """Hand calls to the loop, as many as may be under way."""
        if self._queue and self._blocked() >= self._limits.max_abandoned:
            error = ProviderTimeout(
                f"{self._blocked()} of its event loops are blocked (max_abandoned: "
                f"{self._limits.max_abandoned}); a provider that blocks belongs in"
                " `execution: process`"
            )
            for call in self._queue:
                call.fail(error)
            self._queue.clear()
        while self._queue and len(self._calls) < self._width and not self._closed:
            call = self._queue.popleft()
            flight = _Flight(self._current())
            self._calls[call] = flight
            flight.task = asyncio.run_coroutine_threadsafe(
                self._run(call, flight), flight.instance.loop
            )

    def _blocked(self) -> int:
        self._abandoned = [one for one in self._abandoned if one.thread.is_alive()]
        return len(self._abandoned)

    def _current(self) -> _Instance:
        if self._instance is None:
            first, self._first = self._first, None
            build = self._build if first is None else lambda: first
            self._restarts += first is None
            self._instance = _Instance(self._name, build, self._how)
        return self._instance

    def _expire(self, call: Call, flight: _Flight) -> None:
        queue = f"{self._limits.queue_timeout:g} s"
        blocked = call.started is None and not flight.seen
        if call.started is not None:
            said = f"no answer within timeout: {self._limits.timeout:g} s"
        elif blocked:
            said = (
                f"not begun within queue_timeout: {queue}: its event"
                " loop is held up by a call that does not await, or by its setup"
            )
        else:
            assert self._slots is not None  # what else would it wait for
            said = str(self._slots.too_late(self._limits.queue_timeout))
        call.fail(ProviderTimeout(said))  # before the cancellation can say something else
        flight.cancel()
        if blocked and self._instance is flight.instance:
            self._instance = None
            self._abandoned.append(flight.instance)
            flight.instance.stop()  # ends the thread, should the loop ever turn again

    # -- on the loop -------------------------------------------------------------------------------

    def _drop(self, instance: _Instance) -> None:
        with self._lock:
            if self._instance is instance:
                self._instance = None
        instance.stop()

    async def _run(self, call: Call, flight: _Flight) -> None:
        try:
            await self._score(call, flight)
        finally:
            flight.end()
            with self._lock:
                self._calls.pop(call, None)
                self._feed()

    async def _score(self, call: Call, flight: _Flight) -> None:
        instance = flight.instance
        try:
            if not instance.ready.done():
                await asyncio.shield(asyncio.wrap_future(instance.ready))
            instance.ready.result()
        except Exception as error:  # noqa: BLE001 - a boundary: the mount turns it into failed rows
            self._drop(instance)
            call.fail(ProviderError(f"it could not be set up again: {told(error)}"))
            return
        assert instance.score is not None  # ready
        flight.seen = True
        if self._slots is not None:
            rest = call.queued + self._limits.queue_timeout - monotonic()
            try:
                flight.slot = await self._slots.acquire_async(rest)
            except ProviderTimeout:
                call.fail(self._slots.too_late(self._limits.queue_timeout))
                return
        if not call.begin():
            return
        try:
            answer = await awaited(instance.score, call.batch)
        except asyncio.CancelledError:
            call.fail(ProviderError("the call was cancelled"))
            raise
        except BaseException as error:  # noqa: BLE001 - a boundary: the mount turns it into failed rows
            call.fail(error)
        else:
            call.succeed(answer)


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """What is neither an `Exception` nor a cancellation comes as a `ProviderError`."""
    try:
        yield
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise ProviderError(told(error)) from error


async def awaited(method: Callable[..., Any], *args: object) -> object:
    """What `method` gives; an asynchronous provider may leave setup and close synchronous."""
    answer = method(*args)
    return await answer if inspect.isawaitable(answer) else answer
