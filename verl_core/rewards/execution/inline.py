"""`inline`: in the caller's thread. For work of microseconds; there is no deadline.

In the main thread nothing tells a provider that raises `KeyboardInterrupt` from Ctrl-C, which must
end the run at once: there it goes on to the caller. Anywhere else it fails the call, as whatever
else a provider raises does.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from verl_core.rewards.execution.call import Call, Limits, Settled
from verl_core.rewards.raised import is_interrupt
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.provider import RewardProvider

logger = logging.getLogger(__name__)


class InlineRunner:
    """Calls the provider at once, one caller at a time unless it is thread safe."""

    exhausted = False

    def __init__(self, name: str, provider: RewardProvider[Any], limits: Limits) -> None:
        self._name = name
        self._provider = provider
        self._limits = limits
        self._ready = False
        self._lock: AbstractContextManager[object] = (
            contextlib.nullcontext() if provider.thread_safe else threading.Lock()
        )

    def setup(self) -> None:
        self._provider.setup()
        self._ready = True

    def submit(self, batch: RewardBatch) -> Call:
        call = Call(batch, self._limits, self, Settled())
        with self._lock:
            call.begin()
            run(call, self._provider.score)
        return call

    def tend(self, now: float) -> None:
        """Nothing: whatever was submitted has ended."""

    def cancel(self, call: Call) -> None:
        """Nothing: whatever was submitted has ended."""

    def close(self) -> None:
        if not self._ready:  # `close` releases what `setup` took
            return
        try:
            self._provider.close()
        except BaseException as error:
            if is_interrupt(error):
                raise
            logger.exception("mount %s: close() failed", self._name)

    def describe(self) -> dict[str, Any]:
        return {"workers": None, "restarts": 0}


def run(call: Call, score: Callable[[RewardBatch], object]) -> None:
    """Execute `call`; whatever the provider raises ends it, ``sys.exit`` included."""
    try:
        answer = score(call.batch)
    except BaseException as error:
        call.fail(error)
        if is_interrupt(error):
            raise
    else:
        call.succeed(answer)
