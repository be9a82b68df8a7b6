"""A limit on calls at once that every mount and every process of a machine shares.

Whoever names the same host shares its slots: files in the user's runtime folder, each locked
(`flock`) by whoever holds it. The kernel unlocks what a killed process held, so that no slot is
ever lost. Within a process the waiting stand in line; the first of each line waits with a file of
its own, and of these the one that came first goes first. So nobody starves, and only one of each
process looks at the files, every 50 ms and whenever a slot of this process becomes free.

Processes that see another runtime folder (another user, another ``XDG_RUNTIME_DIR``, a container)
have slots of their own. A fork holds none of its parent's slots, and stands in no line.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import stat
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any

import platformdirs

from verl_core.rewards.execution.call import NotBegun
from verl_core.rewards.raised import told
from verl_reward_sdk.errors import ConfigError, ProviderError

if TYPE_CHECKING:
    from verl_core.rewards.execution.call import Call

#: How often the first in line looks for a slot that another process gave back, in seconds.
POLL_SECONDS = 0.05

_WAITING = "wait-"
_numbers = itertools.count()


class HostSlots:
    """The slots of one host.

    Args:
        name: the host's name: whoever gives the same one shares its slots.
        concurrency: how many slots this one may see. Where others name another number, each keeps
            to its own, and all together to the largest.
        folder: where the files lie; by default the user's runtime folder.

    Raises:
        ConfigError: the folder cannot be used.
        ValueError: `concurrency` is less than 1.
    """

    def __init__(self, name: str, concurrency: int, *, folder: Path | None = None) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        self.name = name
        self.concurrency = concurrency
        readable = re.sub(r"[^A-Za-z0-9.-]", "_", name)[:60]
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        self.folder = (folder or _runtime_folder()) / f"{readable}-{digest}"
        self._prepare()

    def line_up(self, wake: Callable[[], None]) -> Ticket:
        """Get in line. `wake` is called, from any thread, when it may be worth a look."""
        return Ticket(self, _line_of(str(self.folder)), wake)

    def acquire(self, timeout: float) -> Slot:
        """A slot; blocks at most `timeout` seconds.

        Raises:
            NotBegun: none became free in time.
            ProviderError: their files cannot be used.
        """
        event = threading.Event()
        ticket = self.line_up(event.set)
        end = monotonic() + timeout
        try:
            while (slot := ticket.take()) is None:
                event.wait(self._rest(end, ticket))
                event.clear()
        finally:
            ticket.leave()
        return slot

    async def acquire_async(self, timeout: float) -> Slot:
        """`acquire` without blocking the event loop it is called on."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(event.set)

        ticket = self.line_up(wake)
        end = monotonic() + timeout
        try:
            while (slot := ticket.take()) is None:
                rest = self._rest(end, ticket)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(event.wait(), rest)
                event.clear()
        finally:
            ticket.leave()
        return slot

    def acquire_for(self, call: Call) -> Slot | None:
        """A slot for a call that is next in its mount's line; blocks.

        None once the call has ended: cancelled, or because none was free in its `queue_timeout`.

        Raises:
            ProviderError: their files cannot be used.
        """
        event = threading.Event()
        call.future.add_done_callback(lambda _: event.set())
        ticket = self.line_up(event.set)
        try:
            while not call.done:
                slot = ticket.take()
                if slot is not None:
                    return slot
                now = monotonic()
                if call.overdue(now):
                    call.fail(self.too_late(call.limits.queue_timeout))
                rest = call.pause(now)
                event.wait(rest if ticket.pause is None else min(rest, ticket.pause))
                event.clear()
        finally:
            ticket.leave()
        return None

    def too_late(self, timeout: float) -> NotBegun:
        """The error of whoever waited `timeout` seconds in vain."""
        return NotBegun(
            f"no free slot of the host {self.name!r} (concurrency: {self.concurrency}) within"
            f" queue_timeout: {timeout:g} s"
        )

    # -- inside ------------------------------------------------------------------------------------

    def _rest(self, end: float, ticket: Ticket) -> float:
        """Seconds to wait before the next look; raises once the time is up."""
        rest = end - monotonic()
        if rest <= 0:
            raise self.too_late(monotonic() - ticket.since)
        return rest if ticket.pause is None else min(rest, ticket.pause)

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.lstat()
        except OSError as error:
            raise ConfigError(
                f"the slots of the host {self.name!r} cannot be kept in {self.folder}: {error}"
            ) from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ConfigError(f"{self.folder} is no folder of this user: others could hold slots")

    def free(self) -> _Locked | None:
        """A slot's file, locked for the caller; None where all are held."""
        start = next(_numbers)
        for number in range(self.concurrency):
            path = self.folder / f"slot-{(start + number) % self.concurrency:04d}"
            locked = _locked(path)
            if locked is not None:
                return locked
        return None


class _Locked:
    """A file that this process holds locked, until `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._lock = threading.Lock()
        _held.add(self)

    def release(self) -> bool:
        """Unlock and close it. False the second time, which does nothing."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return False
        _held.discard(self)
        os.close(descriptor)
        return True

    def forget(self) -> None:
        """In a fork, which has a copy: as long as that is open, nobody else gets the lock."""
        descriptor, self._descriptor = self._descriptor, None
        self._lock = threading.Lock()
        if descriptor is not None:
            os.close(descriptor)


class Slot:
    """The right to one call, until `release`; a context manager."""

    def __init__(self, locked: _Locked, line: _Line) -> None:
        self._locked = locked
        self._line = line

    def release(self) -> None:
        """Give it back. The second time does nothing."""
        if self._locked.release():
            self._line.ring()

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Line:
    """Those of this process that wait for one host, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Ticket, Callable[[], None]] = {}

    def join(self, ticket: Ticket, wake: Callable[[], None]) -> None:
        with self._lock:
            self._waiting[ticket] = wake

    def leave(self, ticket: Ticket) -> bool:
        """Whether it was still in line."""
        with self._lock:
            return self._waiting.pop(ticket, None) is not None

    def first(self) -> Ticket | None:
        with self._lock:
            return next(iter(self._waiting), None)

    def ring(self) -> None:
        """Wake the first."""
        with self._lock:
            wake = next(iter(self._waiting.values()), None)
        if wake is not None:
            wake()


class Ticket:
    """A place in line for a slot. Ends with `take` or `leave`."""

    def __init__(self, slots: HostSlots, line: _Line, wake: Callable[[], None]) -> None:
        self.since = monotonic()
        self._slots = slots
        self._line = line
        self._name = f"{_WAITING}{monotonic_ns():020d}-{os.getpid()}-{next(_numbers)}"
        self._announced: _Locked | None = None
        line.join(self, wake)

    @property
    def pause(self) -> float | None:
        """Seconds until it should look again; None: when it is woken."""
        return POLL_SECONDS if self._line.first() is self else None

    def take(self) -> Slot | None:
        """A slot, if there is one and it is this one's turn; the ticket has then ended.

        Raises:
            ProviderError: the files cannot be used: a full disk, too many open files, a folder that
                is one no more. The ticket stands in line until `leave`.
        """
        if self._line.first() is not self:
            return None
        try:
            return self._taken()
        except (OSError, ConfigError) as error:
            said = error.message if isinstance(error, ConfigError) else told(error)
            raise ProviderError(
                f"no slot of the host {self._slots.name!r} can be had in {self._slots.folder}:"
                f" {said}"
            ) from error

    def _taken(self) -> Slot | None:
        try:
            locked = self._slots.free() if self._is_next() else None
            if locked is None and self._announced is None:
                self._announced = self._announce()
        except FileNotFoundError:  # somebody tidied up the runtime folder
            self._slots._prepare()
            return None
        if locked is None:
            return None
        self.leave()
        return Slot(locked, self._line)

    def leave(self) -> None:
        """Get out of line."""
        if not self._line.leave(self):
            return
        if self._announced is not None:
            with contextlib.suppress(OSError):  # it is gone, or the next in line removes it
                os.unlink(self._slots.folder / self._name)
            self._announced.release()
            self._announced = None
        self._line.ring()

    def _announce(self) -> _Locked | None:
        """Show other processes that somebody waits here. The file is locked before it gets its
        name, so that nobody takes it for a dead one's."""
        hidden = self._slots.folder / f".{self._name}"
        locked = _locked(hidden)
        try:
            os.rename(hidden, self._slots.folder / self._name)
        except OSError:
            with contextlib.suppress(OSError):  # it is gone with its folder
                os.unlink(hidden)
            if locked is not None:
                locked.release()
            raise
        return locked

    def _is_next(self) -> bool:
        """Whether nobody alive, in any process, waits who came earlier."""
        for name in sorted(os.listdir(self._slots.folder)):
            if not name.startswith(_WAITING):
                continue
            if name >= self._name:
                return True
            path = self._slots.folder / name
            locked = _locked(path, create=False)
            if locked is None:
                return not path.exists() and self._is_next()
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)  # whoever waited was killed
            finally:
                locked.release()
        return True


def _locked(path: Path, *, create: bool = True) -> _Locked | None:
    """`path`, locked; None where somebody else holds it, or it is not there."""
    try:
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        if create:
            raise
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return _Locked(descriptor)


_held: set[_Locked] = set()
_lines: dict[str, _Line] = {}
_lines_lock = threading.Lock()


def _line_of(folder: str) -> _Line:
    with _lines_lock:
        return _lines.setdefault(folder, _Line())


def _forked() -> None:
    """In a fork: its copies of this process's files are closed, and the threads that stood in line
    did not come along."""
    global _lines_lock
    _lines_lock = threading.Lock()
    _lines.clear()
    for locked in _held:
        locked.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forked)


def _runtime_folder() -> Path:
    settings: dict[str, Any] = {"appauthor": False}
    with warnings.catch_warnings():
        # Without XDG_RUNTIME_DIR it names a folder of the user's below /tmp, and warns of that.
        warnings.simplefilter("ignore")
        return Path(platformdirs.user_runtime_dir("verl-reward", **settings)) / "hosts"
