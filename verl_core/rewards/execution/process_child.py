"""One worker process: started, spoken to, killed with all its children, and reaped.

It is spawned, never forked, by `subprocess`, in a session of its own: Ctrl-C in the terminal does
not reach it, and one signal ends its whole process group. (`multiprocessing` would import the
user's script again in each worker, and refuses to start one from a daemonic process.) Descendants
that left the group are found by their parents, which on Linux is the worker itself for those whose
own has ended, and by a variable that they inherit. What escapes: a daemon that has dropped that
variable, where the worker crashes; on macOS, any such daemon.
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

from verl_core.rewards.execution.process_output import Output
from verl_core.rewards.execution.process_wire import MAX_ANSWER
from verl_core.rewards.raised import told

logger = logging.getLogger(__name__)

_MARK = "VERL_REWARD_WORKER"
_BOOT = (
    "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]"
    "; from verl_core.rewards.execution.process_worker import main"
)
_LOOK_SECONDS = 0.05
_EXIT_SECONDS = 1.0
_REAP_SECONDS = 5.0


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
        self._lock = threading.Lock()  # no signal may follow the reaping: the number is free then
        self._reaped = False
        self._mark = uuid.uuid4().hex
        self._started = time.time()
        self._ended: str | None = None
        self._connection, theirs = Pipe()
        try:
            self._process = self._spawn(theirs)
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        try:
            self._look = psutil.Process(self._process.pid)
        except BaseException as error:  # no descriptor is left to look at it
            self._process.kill()
            self._process.communicate()
            self._connection.close()
            raise OSError(f"the new process cannot be looked at: {told(error)}") from error
        assert self._process.stdout is not None  # a pipe
        who = f"mount {name}, worker {self._process.pid}"
        self._output = Output(self._process.stdout.fileno(), who, secrets)

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
            output = self._output.descriptor
            outputs = [] if output is None else [output]
            rest = None if end is None else max(0.0, end - monotonic())
            ready = wait([*watched, *outputs], rest)
            if output in ready:
                self._output.drain()
            if self._connection in ready:
                return True
            if not ready or any(other in ready for other in others):
                return False
            if rest == 0.0:
                return False

    def sum_up(self) -> None:
        """A call begins or has ended: what it may print is counted anew."""
        self._output.sum_up()

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
            family: list[psutil.Process] = []
            try:
                family = self._family()
            except (OSError, psutil.Error) as error:  # too many open files, most likely
                logger.warning(
                    "mount %s: the children of worker %d cannot be looked for: %s",
                    self._name,
                    self.pid,
                    told(error),
                )
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            for process in family:
                with contextlib.suppress(psutil.Error, OSError):
                    process.kill()

    def _family(self) -> list[psutil.Process]:
        """All its descendants, each stopped, so that none of them begets more meanwhile."""
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.Error, OSError):
            self._look.suspend()
        while True:
            new = [p for p in self._descendants() if p.pid not in found and p.pid != self.pid]
            if not new:
                return list(found.values())
            for process in new:
                found[process.pid] = process
                with contextlib.suppress(psutil.Error, OSError):
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
        except (psutil.Error, OSError):  # too many open files: it shows at the next look
            return False

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
        self._output.finish()
        self._connection.close()
        assert self._process.stdout is not None  # a pipe
        self._process.stdout.close()
        return code

    def _told(self, code: int | None) -> str:
        if code is None:
            return "its worker could not be killed"
        if code >= 0:
            words = self._output.last_line
            said = f" (its last words: {words})" if code and words else ""
            return f"its worker exited with code {code}{said}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "a signal"
        why = ": killed from outside, or out of memory" if -code == signal.SIGKILL else ""
        return f"its worker died by {name} (signal {-code}){why}"
