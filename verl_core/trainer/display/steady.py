"""Standard output and standard error that harm nobody who writes to them.

A run of days outlives what it prints to: ``| head`` ends, the disk of a log file fills up, ssh
goes away, a plugin closes descriptor 1. What cannot be printed then is lost, which is said once on
standard error, and the run goes on: no write raises.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class Outlet(io.RawIOBase):
    """Bytes to a file descriptor of its own: nobody else closes it, and no other file takes its
    number. What cannot be written is dropped; the next write is tried again, as a full disk may
    have room by then.

    Args:
        descriptor: belongs to this object, which closes it at its end.
        tell: given one line when the first bytes are lost.
        name: what the line calls this place.
    """

    def __init__(self, descriptor: int, name: str, tell: Outlet | None = None) -> None:
        self._descriptor, self._tell = descriptor, tell
        self.name = name

    def write(self, data: Any) -> int:
        """Write `data`, or what of it can be; gives its length either way."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                rest = rest[self._some(rest) :]
        except OSError as error:
            self._lost(error)
        return size

    def _some(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # another program has made the terminal we share non-blocking
            select.select([], [self._descriptor], [])
            return 0

    def _lost(self, error: OSError) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            why = error.strerror or str(error)
            text = f"{self.name} cannot be written to ({why}): the run goes on without it\n"
            tell.write(text.encode())

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def close(self) -> None:
        """Nothing: a plugin that calls ``sys.stdout.close()`` closes it for nobody."""

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class _Text(io.TextIOWrapper):
    def detach(self) -> Any:
        """The stream of bytes below, which stays below."""
        return self.buffer


def steady(stream: TextIO | None) -> TextIO:
    """A stream to where `stream` writes, whose writes never fail: what its encoding lacks shows as
    ``?``, what cannot be written is dropped.

    Args:
        stream: ``sys.stdout`` or ``sys.stderr``, or what stands for them. One without a descriptor
            (a buffer in memory) is given back as it is; in the place of None, or of one that is
            closed, stands one that keeps nothing.
    """
    outlet: Outlet | None
    if stream is None or stream.closed:
        outlet, encoding = Outlet(os.open(os.devnull, os.O_WRONLY), os.devnull), "utf-8"
    else:
        outlet, encoding = _outlet(stream), stream.encoding
    if outlet is None:
        assert stream is not None
        return stream
    # write_through: there is no buffer that holds what could not be written, or is half written
    # when a signal's handler prints too.
    return _Text(
        outlet,  # raw, as the interpreter's own with -u
        encoding=encoding or "utf-8",
        errors="replace",
        write_through=True,
    )


def _outlet(stream: TextIO | None) -> Outlet | None:
    """The outlet to where `stream` writes; None where it has no open descriptor."""
    if stream is None:
        return None
    raw = getattr(stream, "buffer", None)
    if isinstance(raw, Outlet):
        return raw
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError):
        return None
    if stream is sys.stderr:
        return Outlet(descriptor, "standard error")
    return Outlet(descriptor, "standard output", tell=_outlet(sys.stderr))


@contextlib.contextmanager
def steady_streams() -> Iterator[None]:
    """As long as this lasts, ``sys.stdout`` and ``sys.stderr`` are steady: those of plugins too,
    whose calls would fail by their own prints."""
    occupy_standard_descriptors()
    before = sys.stdout, sys.stderr
    for stream in before:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    sys.stdout, sys.stderr = steady(before[0]), steady(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def occupy_standard_descriptors() -> None:
    """Where one of 0, 1, 2 is closed, put ``/dev/null`` there: the next file that is opened, such
    as a checkpoint's, would get that number, and with it what some library prints."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
