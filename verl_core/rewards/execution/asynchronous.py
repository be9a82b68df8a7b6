"""`async`: on a private event loop. For waiting: I/O, judges.

Each mount has a loop in a daemon thread of its own, so that a caller's loop never matters, and a
coroutine that blocks holds up nobody else. At its deadline a call is cancelled. A loop that is
blocked cannot cancel anything: once a call has waited for its start in vain, the instance is
abandoned, and a fresh one is built, as for `thread`.

A coroutine that ignores its cancellation goes on: it counts against `workers` and holds its host's
slot as long as it does, and after a while it counts as abandoned. So many abandoned calls and loops
(`max_abandoned`), and the mount fails at once, until some of them end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from concurrent.futures import TimeoutError as FutureTimeout
from time import monotonic
from typing import Any

from verl_core.rewards.execution.async_loop import Flight, Instance, awaited
from verl_core.rewards.execution.call import Call, NotBegun, wait_loaded
from verl_core.rewards.execution.owner import Owner
from verl_core.rewards.execution.slots import HostSlots
from verl_core.rewards.execution.work import Build, Work
from verl_core.rewards.raised import told
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ProviderError, ProviderTimeout
from verl_reward_sdk.provider import RewardProvider

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
#: What a coroutine may take to end once it was cancelled, before it counts as abandoned.
_GRACE_SECONDS = 5.0
#: A loop that has not turned for so long, while calls wait in vain, is blocked.
_BLOCKED_SECONDS = 1.0
_WIDTH = 64
_HELD_UP = "its event loop is held up by a call that does not await, or by its setup"


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
        self._owner = Owner("threads")
        self._lock = threading.Lock()
        self._first: RewardProvider[Any] | None = first
        self._instance: Instance | None = None
        self._abandoned: list[Instance] = []
        self._queue: deque[Call] = deque()
        self._calls: dict[Call, Flight] = {}
        self._restarts = 0
        self._closed = False

    @property
    def exhausted(self) -> bool:
        if self._owner.elsewhere:
            return True
        with self._lock:
            return self._refusal() is not None

    def setup(self) -> None:
        if self._owner.elsewhere:
            raise self._owner.error()
        with self._lock:
            instance = self._current()
        try:
            wait_loaded(instance.ready)
        except BaseException:
            self._drop(instance)
            raise

    def submit(self, batch: RewardBatch) -> Call:
        call = Call(batch, self._limits, self)
        if self._owner.elsewhere:
            call.fail(self._owner.error())
            return call
        with self._lock:
            if self._closed:
                call.fail(ProviderError("the mount was closed"))
            else:
                self._queue.append(call)
                self._feed()
        return call

    def tend(self, now: float) -> None:
        if self._owner.elsewhere:
            for call in (*self._queue, *self._calls):  # nobody else is here
                call.fail(self._owner.error())
            return
        with self._lock:
            for call, flight in list(self._calls.items()):
                if call.overdue(now):
                    self._expire(call, flight)
            late = [call for call in self._queue if call.overdue(now)]
            if late:
                self._expire_waiting(late, now)
            self._feed()

    def cancel(self, call: Call) -> None:
        if self._owner.elsewhere:
            call.fail(self._owner.error())
            return
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
        if self._owner.elsewhere:
            return  # its loop's thread is not here, and the provider is that one's
        with self._lock:
            self._closed = True
            instance, self._instance = self._instance, None
            for call in (*self._queue, *self._calls):
                call.fail(ProviderError("the mount was closed"))
            self._queue.clear()
            self._calls.clear()
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
        if instance.thread.is_alive():
            logger.warning(
                "mount %s: its event loop is blocked: its thread was left behind", self._name
            )

    # -- inside; the lock is held ------------------------------------------------------------------

    def _feed(self) -> None:
        """Hand calls to the loop, as many as may be under way."""
        if not self._queue:
            return
        refusal = self._refusal()
        if refusal is not None:
            while self._queue:
                self._queue.popleft().fail(ProviderTimeout(refusal))
        while self._queue and self._under_way() < self._width and not self._closed:
            self._hand_over(self._queue.popleft())

    def _hand_over(self, call: Call) -> None:
        try:
            flight = Flight(call, self._current())
            flight.launch(self._run, self._over)
        except Exception as error:  # noqa: BLE001 - a boundary: the mount turns it into failed rows
            self._instance = None
            call.fail(ProviderError(f"no event loop can be had: {told(error)}"))
            return
        # The loop cannot have ended it yet: that takes the lock.
        self._calls[call] = flight
        flight.instance.flights.add(flight)

    def _under_way(self) -> int:
        """Calls that its loop has, cancelled ones that go on among them."""
        return 0 if self._instance is None else len(self._instance.flights)

    def _refusal(self) -> str | None:
        """Why no further call is taken; None where one is."""
        self._abandoned = [one for one in self._abandoned if one.thread.is_alive()]
        blocked, deaf = len(self._abandoned), self._deaf(_GRACE_SECONDS)
        if blocked + deaf < self._limits.max_abandoned and deaf < self._width:
            return None
        parts = [f"{blocked} of its event loops are blocked"] if blocked else []
        parts += [f"{deaf} of its calls go on though they were cancelled"] if deaf else []
        return (
            f"{' and '.join(parts)} (max_abandoned: {self._limits.max_abandoned}, workers:"
            f" {self._width}); a provider that does such things belongs in `execution: process`"
        )

    def _deaf(self, seconds: float) -> int:
        """How many calls of its loop were cancelled so long ago and go on."""
        if self._instance is None:
            return 0
        since = monotonic() - seconds
        flights = self._instance.flights
        return sum(flight.told is not None and flight.told <= since for flight in flights)

    def _current(self) -> Instance:
        if self._instance is None:
            self._owner.take()
            first = self._first
            build = self._build if first is None else lambda: first
            self._instance = Instance(self._name, build, self._how)
            self._first = None
            self._restarts += first is None
        return self._instance

    def _expire(self, call: Call, flight: Flight) -> None:
        """End a call that its loop has."""
        del self._calls[call]
        queue = f"{self._limits.queue_timeout:g} s"
        blocked = call.started is None and not flight.seen
        if call.started is not None:
            said = f"no answer within timeout: {self._limits.timeout:g} s"
        elif blocked:
            said = f"not begun within queue_timeout: {queue}: {_HELD_UP}"
        else:
            assert self._slots is not None  # what else would it wait for
            said = str(self._slots.too_late(self._limits.queue_timeout))
        late = NotBegun if call.started is None else ProviderTimeout
        call.fail(late(said))  # before the cancellation can say something else
        flight.cancel()
        if blocked and self._instance is flight.instance:
            self._abandon(flight.instance)

    def _expire_waiting(self, late: list[Call], now: float) -> None:
        """End calls that no loop has; their deadline has passed."""
        deaf = self._deaf(0.0)
        why = f"{self._under_way()} calls are under way (workers: {self._width})"
        if deaf:
            why += f", {deaf} of them though they were cancelled"
        if self._instance is not None and self._is_blocked(self._instance, now):
            why = _HELD_UP
            self._abandon(self._instance)
        for call in late:
            self._queue.remove(call)
            queue = f"{self._limits.queue_timeout:g} s"
            call.fail(NotBegun(f"not begun within queue_timeout: {queue}: {why}"))

    def _is_blocked(self, instance: Instance, now: float) -> bool:
        """Whether its loop has not come to cancel a call in a long time."""
        since = now - min(self._limits.queue_timeout, _BLOCKED_SECONDS)
        return any(
            flight.asked is not None and flight.told is None and flight.asked <= since
            for flight in instance.flights
        )

    def _abandon(self, instance: Instance) -> None:
        self._instance = None
        self._abandoned.append(instance)
        instance.stop()  # ends the thread, should the loop ever turn again

    # -- on the loop -------------------------------------------------------------------------------

    def _drop(self, instance: Instance) -> None:
        with self._lock:
            if self._instance is instance:
                self._instance = None
        instance.stop()

    def _over(self, flight: Flight) -> None:
        """Its coroutine has ended, or was never begun."""
        flight.end()
        with self._lock:
            flight.instance.flights.discard(flight)
            self._calls.pop(flight.call, None)
            flight.call.fail(ProviderError("the call was cancelled"))  # does nothing to an end
            self._feed()

    async def _run(self, flight: Flight) -> None:
        try:
            await self._score(flight.call, flight)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a boundary: the mount turns it into failed rows
            flight.call.fail(error)

    async def _score(self, call: Call, flight: Flight) -> None:
        instance = flight.instance
        try:
            if not instance.ready.done():
                await asyncio.shield(asyncio.wrap_future(instance.ready))
            instance.ready.result()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not instance.ready.cancelled():
                raise  # it is this call's own
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
        if call.begin():
            call.succeed(await awaited(instance.score, call.batch))
