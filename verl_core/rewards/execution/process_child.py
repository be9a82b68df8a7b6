"""One worker process: started, spoken to, killed with all its children, and reaped.

It is spawned, never forked, by `subprocess`, in a session of its own: Ctrl-C in the terminal does
not reach it, and one signal ends its whole process group. (`multiprocessing` would import the
user's script again in each worker, and refuses to start one from a daemonic process.) Descendants
that left the group are found by their parents, and by a variable that all of them inherit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from time import monotonic

import psutil

from verl_core.config.secrets import without
from verl_core.rewards.execution.process_wire import MAX_ANSWER

logger = logging.getLogger(__name__)

_MARK = "VERL_REWARD_WORKER"
_BOOT = (
    "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]"
    "; from verl_core.rewards.execution.process_worker import main"
)
_LOOK_SECONDS = 0.05
_EXIT_SECONDS = 1.0
_REAP_SECONDS = 5.0
_MAX_LINE = 2000
_MAX_DRAIN = 2**20


class Child:
    """A worker process and the connection to it. All but `kill` belongs to one thread.

    That thread must live as long as the process does: Linux ends the process with it.

    Args:
        name: the mount's name, for the log.
        secrets: texts that the log must not show.

    Raises:
        OSError: no process could be started.
    """

    def __init__(self, name: str, secrets: Sequence[str] = ()) -> None:
        self._name = name
        self._secrets = tuple(secrets)
        self._lock = threading.Lock()  # no signal may follow the reaping: the number is free then
        self._reaped = False
        self._mark = uuid.uuid4().hex
        self._started = time.time()
        self._ended: str | None = None
        self._partial = b""
        self.last_line = ""
        self._connection, theirs = Pipe()
        try:
            self._process = self._spawn(theirs)
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        assert self._process.stdout is not None  # a pipe
        self._output: int | None = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._look = psutil.Process(self._process.pid)

    def _spawn(self, theirs: Connection) -> subprocess.Popen[bytes]:
        number = theirs.fileno()
        boot = f"{_BOOT}; main({number}, {os.getpid()})"
        return subprocess.Popen(
            [sys.executable, "-c", boot, *(p for p in sys.path if isinstance(p, str))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(number,),
            start_new_session=True,
            env={**os.environ, _MARK: self._mark},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    # -- talk --------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send one frame. It may block while the worker does not read; `kill` ends that.

        Raises:
            OSError: the worker is gone.
        """
        self._connection.send_bytes(frame)

    def receive(self, until: float, given_up: Callable[[], bool] = lambda: False) -> bytes | None:
        """The next frame; None where the time `until` passed first, or somebody gave up.

        Raises:
            EOFError, OSError: the worker is gone.
            ValueError: it sent a frame longer than `MAX_ANSWER`, or no frame at all.
        """
        while not given_up():
            rest = until - monotonic()
            if rest <= 0:
                return None
            if self.wait(min(rest, _LOOK_SECONDS)):
                return self._frame()
            # Children that keep the connection open would hide the worker's death.
            if self._gone() and not self._connection.poll():
                raise EOFError
        return None

    def _frame(self) -> bytes:
        try:
            return self._connection.recv_bytes(MAX_ANSWER)
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError("what its worker sent is too long, or no answer at all") from error

    def wait(self, timeout: float | None, *others: int) -> bool:
        """Block until the worker sends or ends, one of the descriptors `others` can be read, or
        `timeout` passes; pass on what it printed. Whether it sent or ended."""
        watched: list[Connection | int] = [self._connection, *others]
        end = None if timeout is None else monotonic() + timeout
        while True:
            outputs = [] if self._output is None else [self._output]
            rest = None if end is None else max(0.0, end - monotonic())
            ready = wait([*watched, *outputs], rest)
            if self._output in ready:
                self._drain()
            if self._connection in ready:
                return True
            if not ready or any(other in ready for other in others):
                return False
            if rest == 0.0:
                return False

    # -- end ---------------------------------------------------------------------------------------

    def close(self, seconds: float) -> None:
        """Let the provider close, at most `seconds`; then `end`."""
        with contextlib.suppress(OSError, EOFError, ValueError):
            self.send(b"")
            self.receive(monotonic() + seconds)
        self.end()

    def end(self, *, dying: bool = False) -> str:
        """Kill what is left of it and of its children, and reap it; how it ended, for people.

        With `dying`, its connection has just closed: it is given the time to end by itself, so
        that its exit code can be had.
        """
        if self._ended is None:
            end = monotonic() + (_EXIT_SECONDS if dying else 0.0)
            while not (gone := self._gone()) and monotonic() < end:
                time.sleep(0.005)
            self.kill()
            code = self._reap()
            self._ended = self._told(code) if gone else "its worker was killed"
        return self._ended

    def kill(self) -> None:
        """SIGKILL to it and to all its descendants. From any thread."""
        with self._lock:
            if self._reaped:
                return
            family = self._family()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def _family(self) -> list[psutil.Process]:
        """All its descendants, each stopped, so that none of them begets more meanwhile."""
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.Error):
            self._look.suspend()
        while True:
            new = [p for p in self._descendants() if p.pid not in found and p.pid != self.pid]
            if not new:
                return list(found.values())
            for process in new:
                found[process.pid] = process
                with contextlib.suppress(psutil.Error):
                    process.suspend()

    def _descendants(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            found += self._look.children(recursive=True)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                young = process.create_time() >= self._started - 2.0
                if young and process.environ().get(_MARK) == self._mark:
                    found.append(process)
        return found

    def _gone(self) -> bool:
        """Whether it has ended; it is not reaped by the asking."""
        try:
            return bool(self._look.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
        except psutil.NoSuchProcess:
            return True

    def _reap(self) -> int | None:
        """Its exit code, once everything that was open to it is closed; None where the kernel does
        not let it go."""
        code: int | None = None
        with self._lock:
            self._reaped = True
            try:
                code = self._process.wait(_REAP_SECONDS)
            except subprocess.TimeoutExpired:  # subprocess reaps it later
                logger.error(
                    "mount %s: worker %d cannot be killed: it waits in the kernel, most likely for"
                    " a disk or a network file system",
                    self._name,
                    self.pid,
                )
        if self._output is not None:
            self._drain()
        self._say(self._partial)
        self._connection.close()
        assert self._process.stdout is not None  # a pipe
        self._process.stdout.close()
        return code

    def _told(self, code: int | None) -> str:
        if code is None:
            return "its worker could not be killed"
        if code >= 0:
            said = f" (its last words: {self.last_line})" if code and self.last_line else ""
            return f"its worker exited with code {code}{said}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "a signal"
        why = ": killed from outside, or out of memory" if -code == signal.SIGKILL else ""
        return f"its worker died by {name} (signal {-code}){why}"

    # -- what it prints ----------------------------------------------------------------------------

    def _drain(self) -> None:
        """Pass on what it printed so far, line by line."""
        taken = 0
        while self._output is not None and taken < _MAX_DRAIN:
            try:
                chunk = os.read(self._output, 65536)
            except BlockingIOError:
                return
            if not chunk:
                self._output = None  # all of its ends are closed
                return
            taken += len(chunk)
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            for line in lines:
                self._say(line)
            if len(self._partial) > _MAX_LINE:
                self._say(self._partial)
                self._partial = b""

    def _say(self, line: bytes) -> None:
        text = without(line.decode("utf-8", "replace"), self._secrets)[:_MAX_LINE].rstrip()
        text = "".join(c if c.isprintable() or c == "\t" else "?" for c in text)
        if text:
            self.last_line = text
            logger.warning("mount %s, worker %d: %s", self._name, self.pid, text)
