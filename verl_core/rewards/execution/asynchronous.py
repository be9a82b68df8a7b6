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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from verl_core.rewards.execution.call import Call, Limits, wait_loaded
from verl_core.rewards.raised import told
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ProviderError, ProviderTimeout
from verl_reward_sdk.provider import RewardProvider

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0


class _Instance:
    """One provider and the loop it lives on."""

    def __init__(self, name: str, build: Callable[[], RewardProvider[Any]]) -> None:
        self._name = name
        self._build = build
        self._stopped = False
        self.provider: RewardProvider[Any] | None = None
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


class AsyncRunner:
    """Runs a provider whose methods are coroutines.

    Args:
        name: the mount's name, for messages and thread names.
        first: the provider to begin with.
        build: makes a fresh one.
        limits: the mount's deadlines.
    """

    def __init__(
        self,
        name: str,
        first: RewardProvider[Any],
        build: Callable[[], RewardProvider[Any]],
        limits: Limits,
    ) -> None:
        self._name = name
        self._build = build
        self._limits = limits
        self._lock = threading.Lock()
        self._first: RewardProvider[Any] | None = first
        self._instance: _Instance | None = None
        self._abandoned: list[_Instance] = []
        self._calls: dict[Call, tuple[_Instance, Future[None]]] = {}
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
            elif self._blocked() >= self._limits.max_abandoned:
                call.fail(
                    ProviderTimeout(
                        f"{self._blocked()} of its event loops are blocked (max_abandoned: "
                        f"{self._limits.max_abandoned}); a provider that blocks belongs in"
                        " `execution: process`"
                    )
                )
            else:
                instance = self._current()
                task = asyncio.run_coroutine_threadsafe(self._run(call, instance), instance.loop)
                self._calls[call] = (instance, task)
        return call

    def tend(self, now: float) -> None:
        with self._lock:
            for call, (instance, task) in list(self._calls.items()):
                if call.overdue(now):
                    del self._calls[call]
                    self._expire(call, instance, task)

    def cancel(self, call: Call) -> None:
        with self._lock:
            _, task = self._calls.pop(call, (None, None))
        call.fail(ProviderError("cancelled by its caller"))
        if task is not None:
            task.cancel()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            instance, self._instance = self._instance, None
            calls, self._calls = list(self._calls), {}
        for call in calls:
            call.fail(ProviderError("the mount was closed"))
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

    # -- inside ------------------------------------------------------------------------------------

    def _blocked(self) -> int:
        self._abandoned = [one for one in self._abandoned if one.thread.is_alive()]
        return len(self._abandoned)

    def _current(self) -> _Instance:
        if self._instance is None:
            first, self._first = self._first, None
            build = self._build if first is None else lambda: first
            self._instance = _Instance(self._name, build)
        return self._instance

    def _drop(self, instance: _Instance) -> None:
        with self._lock:
            if self._instance is instance:
                self._instance = None
        instance.stop()

    def _expire(self, call: Call, instance: _Instance, task: Future[None]) -> None:
        began = call.started is not None
        if began:
            said = f"no answer within timeout: {self._limits.timeout:g} s"
        else:
            said = (
                f"not begun within queue_timeout: {self._limits.queue_timeout:g} s: its event loop"
                " is held up by a call that does not await, or by its setup"
            )
        call.fail(ProviderTimeout(said))  # before the cancellation can say something else
        task.cancel()
        if not began and self._instance is instance:
            self._instance = None
            self._abandoned.append(instance)
            instance.stop()  # ends the thread, should the loop ever turn again

    async def _run(self, call: Call, instance: _Instance) -> None:
        try:
            await self._score(call, instance)
        finally:
            with self._lock:
                self._calls.pop(call, None)

    async def _score(self, call: Call, instance: _Instance) -> None:
        try:
            if not instance.ready.done():
                await asyncio.shield(asyncio.wrap_future(instance.ready))
            instance.ready.result()
        except Exception as error:  # noqa: BLE001 - a boundary: the mount turns it into failed rows
            self._drop(instance)
            call.fail(ProviderError(f"it could not be set up again: {told(error)}"))
            return
        assert instance.provider is not None  # ready
        if not call.begin():
            return
        try:
            answer = await awaited(instance.provider.score, call.batch)
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
