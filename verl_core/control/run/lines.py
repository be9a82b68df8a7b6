"""The lines of a file that another process appends to, read once each as they come.

A trainer appends to ``metrics.jsonl`` and ``samples.jsonl`` while they are read here. Its last line
may be torn (half written, or the trace of a kill) and is left for later. A run that is resumed puts
a shorter file in the old one's place: it is noticed, and read anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LONGEST = 32 << 20  # bytes: a longer line is passed over, so that none fills the memory
_TAIL = 64


class GrowingFile:
    """One reader of one file; not for several threads at once.

    Args:
        path: the file. It may be missing, and come later.

    Attributes:
        edition: grows when the file is no longer the one that was read, and all begins again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.edition = 0
        self._offset = 0
        self._tail = b""
        self._identity: tuple[int, int] | None = None

    def poll(self) -> Iterator[tuple[int, bytes]]:
        """``(offset, line)`` of every whole line that has come since the last time.

        Look at `edition` after the first one, or when there is none: it says whether what was read
        before still holds.

        Raises:
            OSError: the file is there and cannot be read.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            if self._identity is not None:
                self._begin(None)
            return
        with file:
            stat = os.fstat(file.fileno())
            identity = (stat.st_dev, stat.st_ino)
            if identity != self._identity or not self._continues(file, stat.st_size):
                self._begin(identity)
            file.seek(self._offset)
            while True:
                start, line = self._offset, file.readline(_LONGEST)
                if line.endswith(b"\n"):
                    self._offset += len(line)
                    self._tail = (self._tail + line)[-_TAIL:]
                    yield start, line
                elif len(line) < _LONGEST or not self._pass_over(file):
                    return

    def read_at(self, offset: int) -> bytes:
        """The line that `poll` gave with this offset.

        Raises:
            OSError: it cannot be read.
        """
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.readline(_LONGEST)

    def _begin(self, identity: tuple[int, int] | None) -> None:
        if self._identity is not None:
            self.edition += 1
        self._identity = identity
        self._offset, self._tail = 0, b""

    def _continues(self, file: Any, size: int) -> bool:
        """Whether what was read last still stands where it stood."""
        if size < self._offset:
            return False
        file.seek(self._offset - len(self._tail))
        return bool(file.read(len(self._tail)) == self._tail)

    def _pass_over(self, file: Any) -> bool:
        """Skip the rest of a line that is too long; False where its end has not come yet."""
        while part := file.readline(_LONGEST):
            if part.endswith(b"\n"):
                self._offset = file.tell()
                self._tail = part[-_TAIL:]
                return True
        return False


def record_of(line: bytes) -> dict[str, Any] | None:
    """The object that a line holds; None where it holds none: a torn write that was gone over."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
