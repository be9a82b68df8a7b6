"""Folders of this process alone, where generations keep the copies that they were loaded from.

They lie in the user's cache folder, one folder a process, whose lock the process holds. They are
removed when their generation is closed, at the interpreter's exit, and those of a process that was
killed by the next one that starts.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path

logger = logging.getLogger(__name__)

_LOCK = "lock"


class PrivateRoot:
    """The folder of one process; made when it is first asked for.

    Args:
        parent: where it is made; by default ``verl-reward/assets`` in the user's cache folder, or
            in the system's folder for temporary files where that cannot be written.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent
        self._making = threading.Lock()
        self._owner: int | None = None
        self._path: Path | None = None
        self._numbers = itertools.count(1)

    def folder(self, name: str) -> Path:
        """A new folder in it, with `name` in its own.

        Raises:
            OSError: none can be made.
        """
        with self._making:
            # A fork has its parent's folder, and the parent removes it: it needs one of its own.
            if self._path is None or self._owner != os.getpid() or not self._path.is_dir():
                self._path = self._make()
            plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:40]
            folder = self._path / f"{plain}-{next(self._numbers)}"
            folder.mkdir(mode=0o700)
            return folder

    def _make(self) -> Path:
        errors: list[OSError] = []
        for parent in self._parents():
            try:
                parent.mkdir(parents=True, exist_ok=True)
                with (parent / _LOCK).open("wb") as turn:  # nobody sweeps a folder half made
                    fcntl.flock(turn, fcntl.LOCK_EX)
                    sweep(parent)
                    path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
                    # Held for as long as the process lives, whatever becomes of this object.
                    held = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                errors.append(error)
                continue
            self._owner = os.getpid()
            atexit.register(self._remove, path, os.getpid())
            return path
        raise errors[0]

    def _parents(self) -> list[Path]:
        if self._parent is not None:
            return [self._parent]
        import platformdirs

        cache = platformdirs.user_cache_path("verl-reward", appauthor=False)
        return [cache / "assets", Path(tempfile.gettempdir()) / f"verl-reward-{os.getuid()}"]

    @staticmethod
    def _remove(path: Path, owner: int) -> None:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove the folders whose process has ended: nobody holds their lock."""
    for folder in parent.iterdir():
        with contextlib.suppress(OSError), (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it lives
            shutil.rmtree(folder, ignore_errors=True)


#: Of this process.
ROOT = PrivateRoot()
