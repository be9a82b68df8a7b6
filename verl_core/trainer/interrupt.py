"""Ctrl-C: once, the step ends and is checkpointed (an evaluation is cut); twice, the run stops
where it is. SIGTERM is the same, and so is SIGHUP, which comes when ssh is gone, but once only."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

HANGUP = getattr(signal, "SIGHUP", None)  # a system without terminals that hang up has none
"""Of the terminal that a run was started from."""


def stops() -> tuple[int, ...]:
    """The signals that ask a command to stop. SIGHUP is none of them where it was ignored when we
    began: ``nohup`` asks for that."""
    asked: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
        asked += (HANGUP,)
    return asked


class Heard:
    """Whether a stop was asked for, for who waits: what is raised in a destructor or in a weak
    reference's callback, where a signal may come as well as anywhere, is lost."""

    asked = False

    def check(self) -> None:
        """Raise `KeyboardInterrupt` where it was."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def stops_raise() -> Iterator[Heard]:
    """As long as this lasts, each of `stops` raises `KeyboardInterrupt`, as Ctrl-C does.

    SIGINT too: a shell script starts a command that ends in ``&`` with SIGINT ignored, and Python
    then leaves it so. Outside the main thread nothing changes.
    """

    heard = Heard()

    def interrupt(*_: object) -> None:
        heard.asked = True
        raise KeyboardInterrupt

    before = _handle(interrupt)
    try:
        yield heard
    finally:
        _give_back(before)


@contextmanager
def unstopped() -> Iterator[None]:
    """For what takes no time and must not be left half done: as long as this lasts, `stops` are
    not heard."""
    before = _handle(signal.SIG_IGN)
    try:
        yield
    finally:
        _give_back(before)


class Interrupt:
    """Notes the first SIGINT or SIGTERM, and lets the second one through.

    SIGHUP is noted and never let through: the system and the shell both send it when a terminal
    goes away, and neither is in a hurry.

    Outside the main thread Python delivers no signals; there it notes nothing.

    Args:
        say: tells the user that the first one was heard.
    """

    def __init__(self, say: Callable[[str], Any]) -> None:
        self.asked = False
        self._pressed = False
        self._say = say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = _handle(self._heard)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _give_back(self._before)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            told, self.asked = self.asked, True
        elif self._pressed:
            raise KeyboardInterrupt
        else:
            told, self.asked, self._pressed = False, True, True
        if not told:
            self._say(
                "stopping: a step is ended, an evaluation is cut (once more to stop at once) ..."
            )


def _handle(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> dict[int, Any]:
    """Let `handler` hear the `stops`; gives who heard them before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in stops()}


def _give_back(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
