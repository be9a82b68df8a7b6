"""A runner whose threads end with whoever holds it, closed or not.

A runner's threads hold the runner, so that by itself it is never collected. What others hold is a
`HeldRunner`; once nobody does, a thread of this process closes the runner. (A finalizer may run at
any point of any thread, locks held: it only puts the runner into a queue that allows for that.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from queue import SimpleQueue
from typing import Any

from verl_core.rewards.execution.call import Call, Runner
from verl_reward_sdk.batch import RewardBatch

logger = logging.getLogger(__name__)


class HeldRunner:
    """`runner`, closed when this is collected.

    Its calls are the runner's own.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = self.inner = runner
        self._dropped = weakref.finalize(self, _closer.drop, runner)
        self._dropped.atexit = False  # its threads are daemons, and its workers see to themselves

    @property
    def exhausted(self) -> bool:
        return self._runner.exhausted

    def setup(self) -> None:
        _closer.start()
        self._runner.setup()

    def submit(self, batch: RewardBatch) -> Call:
        _closer.start()
        return self._runner.submit(batch)

    def tend(self, now: float) -> None:
        self._runner.tend(now)

    def cancel(self, call: Call) -> None:
        self._runner.cancel(call)

    def close(self) -> None:
        self._dropped.detach()
        self._runner.close()

    def describe(self) -> dict[str, Any]:
        return self._runner.describe()


class _Closer:
    """Closes what was dropped, in a daemon thread: one a process, once it has a runner in use."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Runner] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """See to it that the thread runs; where the system has none left, the next call does."""
        if self._thread is None:
            with self._lock, contextlib.suppress(RuntimeError):
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="reward-closer", daemon=True)
                    thread.start()
                    self._thread = thread

    def drop(self, runner: Runner) -> None:
        self._queue.put(runner)

    def _run(self) -> None:
        while True:
            try:
                self._queue.get().close()
            except Exception:  # a boundary: nobody can be told but the log
                logger.exception("a mount that nobody holds any more cannot be closed")


_closer = _Closer()
