"""Ctrl-C: once, the step ends and is checkpointed (an evaluation is cut); twice, the run stops
where it is. SIGTERM is the same."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """Notes the first SIGINT or SIGTERM, and lets the second one through.

    Outside the main thread Python delivers no signals; there it notes nothing.

    Args:
        say: tells the user that the first one was heard.
    """

    def __init__(self, say: Callable[[str], Any]) -> None:
        self.asked = False
        self._say = say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("stopping: a step is ended, an evaluation is cut (once more to stop at once) ...")
