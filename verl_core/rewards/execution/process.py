"""`process`: in worker processes of the mount's own. For all that may hang, crash, leak or hold the
GIL.

Each worker builds its own provider from a recipe and is kept warm. At its deadline a call ends as
failed, and its worker is killed with all its children and replaced; so is a worker that dies, whose
call fails with the signal or the exit code. A worker that cannot be set up is tried again when
there is work for it, after a pause that doubles; until then calls fail at once, with the reason.

Underneath are `subprocess`, `multiprocessing.connection` and psutil rather than a process pool:
pebble and loky share one channel and its lock among workers, unpickle whatever a worker answers,
start workers again without bound or end the pool, and kill a worker without its children.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any

from verl_core.rewards.execution.call import Call, Limits, NotBegun
from verl_core.rewards.execution.owner import Owner
from verl_core.rewards.execution.process_child import Child
from verl_core.rewards.execution.process_line import Line
from verl_core.rewards.execution.process_place import Place
from verl_core.rewards.execution.recipe import Recipe
from verl_core.rewards.execution.slots import HostSlots
from verl_core.rewards.raised import told
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ProviderError

_CLOSE_SECONDS = 5.0
_STUCK_SECONDS = 2.0


class ProcessRunner:
    """Runs a provider in worker processes. From any thread, and any event loop.

    Args:
        recipe: how a worker makes its provider.
        limits: the mount's deadlines; `max_abandoned` does not matter here.
        workers: how many, and so the most calls at once.
        slots: the limit that calls share with whoever else speaks to the same host.
        setup_timeout: seconds a worker has to start and set up its provider.
        secrets: texts that the log of what workers print must not show.

    Raises:
        ConfigError: the recipe cannot be sent to another process.
    """

    def __init__(
        self,
        recipe: Recipe,
        limits: Limits,
        *,
        workers: int = 1,
        slots: HostSlots | None = None,
        setup_timeout: float = 600.0,
        secrets: Sequence[str] = (),
    ) -> None:
        self._line = Line(
            recipe.name, recipe.packed(), limits, workers, slots, setup_timeout, tuple(secrets)
        )
        self._owner = Owner("workers")
        self._places = [Place(self._line, number) for number in range(workers)]
        # The workers end with this process anyway; their children only if somebody kills them.
        weakref.finalize(self, _kill, self._line.children, self._line.over, self._owner)

    @property
    def children(self) -> set[Child]:
        """The workers that are alive, or not reaped yet."""
        return self._line.children

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The labels of its provider, as a worker told them once it was set up."""
        return self._line.labels

    @property
    def exhausted(self) -> bool:
        if self._owner.elsewhere:
            return True
        with self._line.lock:
            return self._line.refusal(monotonic()) is not None

    def setup(self) -> None:
        """Start the workers, all at once, and wait until each is set up.

        Raises:
            ConfigError, ProviderError: what one of them raised, or how it died.
        """
        if self._owner.elsewhere:
            raise self._owner.error()
        self._owner.take()
        with self._line.lock:
            if self._line.closed:
                raise ProviderError("the mount was closed")
            attempts = [place.start() for place in self._places]
        for attempt in attempts:
            error = attempt.exception()
            if error is not None:
                raise error

    def submit(self, batch: RewardBatch) -> Call:
        call = Call(batch, self._line.limits, self)
        if self._owner.elsewhere:
            call.fail(self._owner.error())
            return call
        self._owner.take()
        with self._line.lock:
            refusal = self._line.refusal(monotonic())
            if self._line.closed:
                call.fail(ProviderError("the mount was closed"))
            elif refusal is not None:
                call.fail(ProviderError(refusal))
            else:
                self._line.queue.append(call)
                self._ask()
        return call

    def _ask(self) -> None:
        """Have some worker take the newest call; the lock is held."""
        for place in self._places:
            try:
                place.ask()
            except (OSError, RuntimeError) as error:  # no more descriptors, or threads
                if not any(place.thread for place in self._places):
                    self._line.drop(ProviderError(f"no worker can be started: {told(error)}"))

    def tend(self, now: float) -> None:
        """End what is overdue. The thread of its place kills the worker at the same time; one that
        cannot, because it is stuck in sending or receiving, is helped."""
        if self._owner.elsewhere:
            for one in (*self._line.queue, *(place.call for place in self._places)):
                if one is not None:
                    one.fail(self._owner.error())  # nobody else is here
            return
        stuck: list[Child] = []
        with self._line.lock:
            for place in self._places:
                call, child = place.call, place.child
                if call is None or child is None or call.started is None:
                    continue
                if call.overdue(now):
                    call.fail(self._line.too_late())
                if now > call.started + self._line.limits.timeout + _STUCK_SECONDS:
                    stuck.append(child)
            for call in [call for call in self._line.queue if call.overdue(now)]:
                self._line.queue.remove(call)
                seconds = f"{self._line.limits.queue_timeout:g} s"
                call.fail(NotBegun(f"not begun within queue_timeout: {seconds}"))
        for child in stuck:
            child.kill()

    def cancel(self, call: Call) -> None:
        """Take it out of the line. One that runs goes on; its answer is dropped."""
        if self._owner.elsewhere:
            call.fail(self._owner.error())
            return
        with self._line.lock:
            if call in self._line.queue:
                self._line.queue.remove(call)
                call.fail(ProviderError("cancelled by its caller"))

    def close(self) -> None:
        """Let the workers go: 5 s for calls and the providers' `close`, then they are killed."""
        if self._owner.elsewhere:
            return  # they are not this process's to end
        with self._line.lock:
            self._line.over.set()
            self._line.drop(ProviderError("the mount was closed"))
            threads = [place.thread for place in self._places if place.thread is not None]
            for place in self._places:
                place.wake()
        _join(threads, _CLOSE_SECONDS)
        with self._line.lock:
            left = list(self._line.children)
            for place in self._places:
                if place.call is not None:
                    place.call.fail(ProviderError("the mount was closed"))
        for child in left:
            child.kill()
        _join(threads, _CLOSE_SECONDS)

    def describe(self) -> dict[str, Any]:
        restarts = sum(max(0, place.starts - 1) for place in self._places)
        return {"workers": len(self._places), "restarts": restarts}


def _join(threads: Iterable[threading.Thread], seconds: float) -> None:
    end = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - monotonic()))


def _kill(children: set[Child], over: threading.Event, owner: Owner) -> None:
    """At the interpreter's exit: nobody closed the mount."""
    if not owner.elsewhere:
        over.set()
        for child in list(children):
            child.kill()
