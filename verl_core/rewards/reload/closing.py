"""Generations that nobody holds any more are closed: in a thread of its own, one after the other.

The last to let go of one may be anybody, anywhere, holding any lock: it must not wait for threads
to end and files to be removed.
"""

from __future__ import annotations

import logging
import threading
import weakref
from queue import SimpleQueue
from typing import TypeAlias

from verl_core.rewards.execution import Runner
from verl_core.rewards.mount import Mount
from verl_core.rewards.reload.copies import Taken

logger = logging.getLogger(__name__)

_Parts: TypeAlias = tuple[str, Runner, "Taken | None"]


class Retired:
    """The generations of one mount that were replaced. From any thread.

    Args:
        name: the mount's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: dict[int, weakref.ReferenceType[Mount]] = {}
        self._ends: dict[int, weakref.finalize] = {}  # type: ignore[type-arg]

    def add(self, mount: Mount) -> None:
        """`mount` was replaced: close it when nobody holds it any more."""
        _start()
        self._held[mount.generation] = weakref.ref(mount)
        end = weakref.finalize(mount, _QUEUE.put, (self._name, mount.runner, mount.taken))
        end.atexit = False
        self._ends[mount.generation] = end
        for number in [n for n, one in list(self._ends.items()) if not one.alive]:
            self._held.pop(number, None)
            self._ends.pop(number, None)

    def get(self, generation: int | None) -> Mount | None:
        """A generation that is still held, by its number."""
        held = None if generation is None else self._held.get(generation)
        return None if held is None else held()

    def __len__(self) -> int:
        return sum(end.alive for end in list(self._ends.values()))

    def close(self) -> None:
        """Close those that are still held, now."""
        for end in list(self._ends.values()):
            parts = end.detach()
            if parts is not None:
                release(*parts[2][0])
        self._ends.clear()


def release(name: str, runner: Runner, taken: Taken | None) -> None:
    """Close a generation's provider and remove its copies."""
    try:
        runner.close()
    except Exception:  # a boundary: nobody can be told but the log
        logger.exception("mount %s: a generation could not be closed", name)
    if taken is not None:
        taken.drop()


_QUEUE: SimpleQueue[_Parts | threading.Event] = SimpleQueue()
_STARTING = threading.Lock()
_thread: threading.Thread | None = None


def flush(seconds: float) -> None:
    """Wait until what was let go of so far is closed, at most so long."""
    if _thread is not None and _thread.is_alive():
        done = threading.Event()
        _QUEUE.put(done)
        done.wait(seconds)


def _start() -> None:
    global _thread
    with _STARTING:
        if _thread is None or not _thread.is_alive():  # after a fork there is none
            _thread = threading.Thread(target=_close_all, name="reward-closing", daemon=True)
            _thread.start()


def _close_all() -> None:
    while True:
        found = _QUEUE.get()
        if isinstance(found, threading.Event):
            found.set()
        else:
            release(*found)
        del found  # it holds a provider
