"""`inline`: in the caller's thread. For work of microseconds; there is no deadline."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from verl_core.rewards.execution.call import Call, Limits
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.provider import RewardProvider


class InlineRunner:
    """Calls the provider at once, one caller at a time unless it is thread safe."""

    exhausted = False

    def __init__(self, provider: RewardProvider[Any], limits: Limits) -> None:
        self._provider = provider
        self._limits = limits
        self._lock: AbstractContextManager[object] = (
            contextlib.nullcontext() if provider.thread_safe else threading.Lock()
        )

    def setup(self) -> None:
        self._provider.setup()

    def submit(self, batch: RewardBatch) -> Call:
        call = Call(batch, self._limits, self)
        with self._lock:
            call.begin()
            run(call, self._provider.score)
        return call

    def tend(self, now: float) -> None:
        """Nothing: whatever was submitted has ended."""

    def cancel(self, call: Call) -> None:
        """Nothing: whatever was submitted has ended."""

    def close(self) -> None:
        self._provider.close()


def run(call: Call, score: Callable[[RewardBatch], object]) -> None:
    """Execute `call` with `score`; whatever is raised ends it, ``sys.exit`` included."""
    try:
        answer = score(call.batch)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a boundary: the mount turns it into failed rows
        call.fail(error)
    else:
        call.succeed(answer)
