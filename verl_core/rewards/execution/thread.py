"""`thread`: in a daemon thread of the mount's own. For trusted Python, numpy and torch.

A thread cannot be killed. At its deadline a call ends as failed and its batch goes on; the provider
*instance* is poisoned: it is never called again, and a fresh one is built, in a fresh thread. So
many threads that hang at one time (`max_abandoned`), and the mount fails at once; it works again
when one of them comes back. Being daemons, they never hold up the interpreter's exit.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future
from time import monotonic
from typing import Any

from verl_core.rewards.execution.call import Call, NotBegun, wait_loaded
from verl_core.rewards.execution.inline import run
from verl_core.rewards.execution.owner import Owner
from verl_core.rewards.execution.slots import Slot
from verl_core.rewards.execution.work import Build, Score, Work, scorer
from verl_core.rewards.process_state import Culprit, kept
from verl_core.rewards.raised import told
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ProviderError, ProviderTimeout
from verl_reward_sdk.provider import RewardProvider

logger = logging.getLogger(__name__)

_WIDTH = 16
_CLOSE_SECONDS = 5.0


class _Instance:
    """One provider and the threads that may call it."""

    def __init__(self, provider: RewardProvider[Any] | None) -> None:
        self.provider = provider
        self.score: Score | None = None
        self.ready: Future[None] = Future()
        self.threads: set[threading.Thread] = set()
        self.idle = 0
        self.claimed = False  # one of its threads has begun to set it up
        self.poisoned = False


class ThreadRunner:
    """Runs a provider in daemon threads: one, or several (16) where it is thread safe.

    A call that waits for a slot of its host has a thread, and has not begun.

    Args:
        name: the mount's name, for messages and thread names.
        first: the provider to begin with.
        build: makes a fresh one.
        work: how calls are made; `workers` of more than 1 only for a provider that is thread safe.
    """

    def __init__(self, name: str, first: RewardProvider[Any], build: Build, work: Work) -> None:
        self._name = name
        self._culprit = Culprit(f"mount {name!r}")
        self._build = build
        self._limits = work.limits
        self._retries = work.retries
        self._slots = work.slots
        self._width = work.workers or (_WIDTH if first.thread_safe else 1)
        self._owner = Owner("threads")
        # All of the below is guarded by this condition's lock.
        self._work = threading.Condition()
        self._queue: deque[Call] = deque()
        self._starting: set[Call] = set()
        self._running: dict[Call, tuple[_Instance, threading.Thread, Slot | None]] = {}
        self._instance: _Instance | None = _Instance(first)
        self._abandoned: list[threading.Thread] = []
        self._restarts = 0
        self._closed = False

    @property
    def exhausted(self) -> bool:
        if self._owner.elsewhere:
            return True
        with self._work:
            return self._hung() >= self._limits.max_abandoned

    def setup(self) -> None:
        if self._owner.elsewhere:
            raise self._owner.error()
        with self._work:
            instance = self._current()
            if not instance.threads:
                self._spawn(instance)
        wait_loaded(instance.ready)

    def submit(self, batch: RewardBatch) -> Call:
        call = Call(batch, self._limits, self)
        if self._owner.elsewhere:
            call.fail(self._owner.error())
            return call
        with self._work:
            if self._closed:
                call.fail(ProviderError("the mount was closed"))
            elif self._hung() >= self._limits.max_abandoned:
                call.fail(self._exhaustion())
            else:
                self._queue.append(call)
                self._man(self._current())
                self._work.notify()
        return call

    def tend(self, now: float) -> None:
        if self._owner.elsewhere:
            for call in (*self._queue, *self._starting, *self._running):  # nobody else is here
                call.fail(self._owner.error())
            return
        with self._work:
            for call, (instance, thread, slot) in list(self._running.items()):
                if call.overdue(now):
                    call.fail(
                        ProviderTimeout(f"no answer within timeout: {self._limits.timeout:g} s")
                    )
                    del self._running[call]
                    if slot is not None:
                        slot.release()
                    self._abandoned.append(thread)
                    self._poison(instance)
            for call in [call for call in self._queue if call.overdue(now)]:
                self._queue.remove(call)
                wait = f"{self._limits.queue_timeout:g} s"
                call.fail(NotBegun(f"not begun within queue_timeout: {wait}"))

    def cancel(self, call: Call) -> None:
        """Take it out of the line. One that runs goes on; its answer is dropped."""
        if self._owner.elsewhere:
            call.fail(self._owner.error())
            return
        with self._work:
            if call in self._queue:
                self._queue.remove(call)
                call.fail(ProviderError("cancelled by its caller"))
            elif call in self._starting:
                call.fail(ProviderError("cancelled by its caller"))

    def describe(self) -> dict[str, Any]:
        return {"workers": self._width, "restarts": self._restarts}

    def close(self) -> None:
        if self._owner.elsewhere:
            return  # its threads are not here, and the provider is theirs
        with self._work:
            self._closed = True
            instance, self._instance = self._instance, None
            for call in (*self._queue, *self._starting):
                call.fail(ProviderError("the mount was closed"))
            self._queue.clear()
            self._work.notify_all()
            threads = [] if instance is None else list(instance.threads)
        end = monotonic() + _CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - monotonic()))

    # -- inside; the lock is held ----------------------------------------------------------------

    def _hung(self) -> int:
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        return len(self._abandoned)

    def _exhaustion(self) -> ProviderTimeout:
        return ProviderTimeout(
            f"{self._hung()} of its calls hang (max_abandoned: {self._limits.max_abandoned}), and"
            " threads cannot be killed; a provider that may hang belongs in `execution: process`"
        )

    def _current(self) -> _Instance:
        if self._instance is None:
            self._instance = _Instance(None)
            self._restarts += 1
        return self._instance

    def _man(self, instance: _Instance) -> None:
        """See to it that somebody takes the newest call."""
        if len(self._queue) > instance.idle and len(instance.threads) < self._width:
            try:
                self._spawn(instance)
            except RuntimeError as error:  # the system has no more threads
                if not instance.threads:
                    self._drop_line(ProviderError(f"no thread can be started: {told(error)}"))

    def _drop_line(self, error: ProviderError) -> None:
        while self._queue:
            self._queue.popleft().fail(error)

    def _spawn(self, instance: _Instance) -> None:
        self._owner.take()
        thread = threading.Thread(
            target=self._serve, args=(instance,), name=f"reward-{self._name}", daemon=True
        )
        instance.threads.add(thread)
        try:
            thread.start()
        except BaseException:
            instance.threads.discard(thread)
            raise

    def _poison(self, instance: _Instance) -> None:
        if instance.poisoned:
            return
        instance.poisoned = True
        if self._instance is instance:
            self._instance = None
        self._work.notify_all()  # its idle threads go home
        if self._hung() >= self._limits.max_abandoned:
            self._drop_line(self._exhaustion())
        elif self._queue:
            self._man(self._current())

    # -- a worker's life ---------------------------------------------------------------------------

    def _serve(self, instance: _Instance) -> None:
        thread = threading.current_thread()
        try:
            if self._load(instance):
                while (found := self._next(instance, thread)) is not None:
                    self._execute(instance, *found)
        finally:
            with self._work:
                instance.threads.discard(thread)
                last = self._closed and not instance.threads
            if last and not instance.poisoned and instance.ready.exception() is None:
                self._release(instance)

    def _execute(self, instance: _Instance, call: Call, slot: Slot | None) -> None:
        """One call, to its end."""
        assert instance.score is not None  # loaded
        try:
            # Its other calls in this thread are not to find what this one changes.
            with kept(self._culprit, of_thread=True):
                run(call, instance.score)
        except BaseException as error:  # noqa: BLE001 - a boundary: this thread has other calls
            call.fail(error)
        finally:
            if slot is not None:
                slot.release()
            with self._work:
                self._running.pop(call, None)

    def _release(self, instance: _Instance) -> None:
        """Close the provider in the thread that it knows."""
        assert instance.provider is not None  # loaded
        try:
            instance.provider.close()
        except BaseException:  # a boundary: nobody can be told but the log
            logger.exception("mount %s: close() failed", self._name)

    def _load(self, instance: _Instance) -> bool:
        """Set up the provider, by the first of its threads; the others wait for it."""
        with self._work:
            claimed, instance.claimed = instance.claimed, True
        if claimed:
            return instance.ready.exception() is None
        try:
            if instance.provider is None:
                instance.provider = self._build()
            instance.provider.setup()
            instance.score = scorer(instance.provider, self._retries)
        except BaseException as error:  # noqa: BLE001 - a boundary: whoever waits gets the error
            self._fail_to_load(instance, error)
            return False
        instance.ready.set_result(None)
        return True

    def _fail_to_load(self, instance: _Instance, error: BaseException) -> None:
        """Fail whoever waits; the next call tries a fresh instance."""
        with self._work:
            if self._instance is instance:
                self._instance = None
            self._drop_line(ProviderError(f"it could not be set up again: {told(error)}"))
        instance.ready.set_exception(error)

    def _next(
        self, instance: _Instance, thread: threading.Thread
    ) -> tuple[Call, Slot | None] | None:
        """The next call, begun, and its host's slot; None once the thread may go home."""
        while (call := self._first(instance)) is not None:
            slot: Slot | None = None
            try:
                slot = None if self._slots is None else self._slots.acquire_for(call)
            except BaseException as error:  # noqa: BLE001 - a boundary: this thread has other calls
                call.fail(error)
            with self._work:
                self._starting.discard(call)
                if call.done:
                    pass  # cancelled, too late, or without a slot
                elif instance.poisoned or self._closed:
                    self._pass_on(call)
                elif call.begin():
                    self._running[call] = (instance, thread, slot)
                    return call, slot
            if slot is not None:
                slot.release()
        return None

    def _first(self, instance: _Instance) -> Call | None:
        """The first call in line, taken out of it."""
        with self._work:
            while not instance.poisoned and not self._closed:
                if self._queue:
                    call = self._queue.popleft()
                    self._starting.add(call)
                    return call
                instance.idle += 1
                self._work.wait()
                instance.idle -= 1
            return None

    def _pass_on(self, call: Call) -> None:
        """Leave it to the instance that has taken this one's place; the lock is held."""
        if self._closed:
            call.fail(ProviderError("the mount was closed"))
        elif self._hung() >= self._limits.max_abandoned:
            call.fail(self._exhaustion())
        else:
            self._queue.appendleft(call)
            self._man(self._current())
            self._work.notify()
