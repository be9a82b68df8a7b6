"""Whether somebody else has the same file of weights open: told, not forbidden.

The revisions stay right whoever writes (`persistence`). But two trainers or servers of one run are
seldom meant: each turns the knobs of the other. The sign is an advisory lock (`flock`) on the
file's folder, which the system takes back when a process ends, however it ends. Systems without
`flock` know nothing of each other.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Presence:
    """Holds the sign of one file while it is open.

    Args:
        path: the file; None: in memory, where nobody else can be.

    Attributes:
        alone: nobody else held the sign when this began; True where nobody can tell.
    """

    def __init__(self, path: Path | None) -> None:
        self.alone = True
        self._folder: int | None = None
        if path is None or fcntl is None:
            return
        try:
            self._folder = os.open(path.parent, os.O_RDONLY)
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.alone = False
        except OSError:  # a file system without locks, or a folder that may not be read
            self.close()

    def close(self) -> None:
        """Take the sign down."""
        folder, self._folder = self._folder, None
        if folder is not None:
            os.close(folder)
