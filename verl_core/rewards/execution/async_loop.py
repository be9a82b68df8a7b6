"""The event loop of an `execution: async` mount, in a daemon thread of its own, and its calls.

asyncio ends a loop where a task raises `SystemExit` or `KeyboardInterrupt`. Here either only fails
the call (or the set-up) that raised it; what a task of the provider's own raises is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from verl_core.rewards.execution.call import Call
from verl_core.rewards.execution.slots import Slot
from verl_core.rewards.execution.work import Build, Score, Work, scorer
from verl_core.rewards.raised import told
from verl_reward_sdk.errors import ProviderError
from verl_reward_sdk.provider import RewardProvider

logger = logging.getLogger(__name__)

#: How long tasks may take to end once the loop is to stop, in seconds.
_END_SECONDS = 1.0


class Instance:
    """One provider and the loop it lives on.

    Args:
        name: the mount's name, for messages and the thread's name.
        build: makes the provider, on the loop.
        work: how calls are made.

    Raises:
        OSError, RuntimeError: the system has no more descriptors or threads.
    """

    def __init__(self, name: str, build: Build, work: Work) -> None:
        self._name = name
        self._build = build
        self._retries = work.retries
        self._stopped = False
        self.provider: RewardProvider[Any] | None = None
        self.score: Score | None = None
        #: Calls whose coroutines may take another step. Guarded by the runner's lock.
        self.flights: set[Flight] = set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name=f"reward-{name}", daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self.loop.close()
            raise
        self.ready: Future[None] = asyncio.run_coroutine_threadsafe(self._setup(), self.loop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._turn()
            self._end_tasks()
        finally:
            # None of them can go on, not even those that ignore their cancellation.
            for flight in list(self.flights):
                flight.end()
            self.loop.close()

    def _turn(self) -> None:
        """Run the loop until `stop`, whatever a task of the provider's own raises out of it."""
        while not self._stopped:
            try:
                self.loop.run_forever()
            except BaseException:  # a boundary: nobody can be told but the log
                logger.exception("mount %s: a task of its own failed", self._name)

    def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        try:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_END_SECONDS))
        except BaseException:  # a boundary: nobody can be told but the log
            logger.exception("mount %s: a task of its own failed", self._name)
        left = [task for task in tasks if not task.done()]
        if left:
            logger.warning(
                "mount %s: %d of its coroutines ignore their cancellation: they were left behind",
                self._name,
                len(left),
            )

    async def _setup(self) -> None:
        with _contained():
            self.provider = self._build()
            try:
                await awaited(self.provider.setup)
            except asyncio.CancelledError as error:
                # As it is, it would pass for the cancellation of whoever waits for this.
                raise ProviderError("its setup was cancelled (CancelledError)") from error
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


@dataclass(eq=False)
class Flight:
    """A call that was handed to a loop.

    Args:
        call: the call.
        instance: whose loop.
        seen: the loop has turned since: what holds the call up now is not the loop.
        slot: of its host; held until the coroutine can take no other step.
        asked: when somebody gave up on it (monotonic).
        told: when its coroutine was cancelled for that: later than `asked` by as long as the loop
            is blocked.
    """

    call: Call
    instance: Instance
    seen: bool = False
    slot: Slot | None = None
    asked: float | None = None
    told: float | None = None
    _task: asyncio.Task[None] | None = None

    def launch(self, run: Run, over: Callable[[Flight], object]) -> None:
        """Run it on its loop; from any thread. `over` is called there once it has ended."""
        self.instance.loop.call_soon_threadsafe(partial(self._launch, run, over))

    def _launch(self, run: Run, over: Callable[[Flight], object]) -> None:
        if self.asked is not None:
            over(self)
            return
        self._task = self.instance.loop.create_task(run(self))
        self._task.add_done_callback(lambda _: over(self))

    def cancel(self) -> None:
        """Give up on it; from any thread. A loop that is blocked hears of it when it turns."""
        if self.asked is None:
            self.asked = monotonic()
            with contextlib.suppress(RuntimeError):  # the loop has ended, and it with the loop
                self.instance.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self.told = monotonic()
            self._task.cancel()

    def end(self) -> None:
        """Give back its slot; the second time does nothing."""
        if self.slot is not None:
            self.slot.release()


Run: TypeAlias = Callable[[Flight], Coroutine[Any, Any, None]]


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
