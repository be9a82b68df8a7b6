"""What somebody else's code raised: whether it is Ctrl-C, and its words for a table and a log."""

from __future__ import annotations

import threading


def is_interrupt(error: BaseException) -> bool:
    """Whether `error`, just caught, may be Ctrl-C: Python raises that in the main thread only."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    )


def told(error: BaseException) -> str:
    """``TypeError: no such thing``: on one line, without control characters.

    An exception is somebody else's code too: one whose own text cannot be had is named by its type.
    """
    text = _text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as inner:  # somebody else's, and not even to be shown
        if is_interrupt(inner):
            raise
        return f"(its text cannot be shown: {type(inner).__name__})"
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
