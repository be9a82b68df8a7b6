"""Several worker processes behind one listening socket: started, watched, started again.

The socket is made here and inherited, rather than each worker's own under SO_REUSEPORT: there is
one line of waiting connections, so that none waits for a worker that is dead or busy, none is lost
with a worker that is replaced, and a port that another program holds is still refused.

A worker says when it is ready; everybody is told how many are. One that ends is started again,
after a pause that grows; it takes connections once its mounts are loaded.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from verl_reward_sdk.errors import VerlRewardError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
_STEADY_SECONDS = 10.0  # a worker that lived longer did not fail at its start
_MAX_FAILURES = 3
_LOOK_SECONDS = 0.2


class _Worker:
    """One place among the workers, and the process that fills it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.link: socket.socket | None = None
        self.said = b""
        self.ready = False
        self.began = 0.0
        self.failures = 0  # in a row, before it was ready
        self.quick = 0  # ends in a row, each soon after the start
        self.again = 0.0


class Supervisor:
    """Keeps `count` workers running.

    Args:
        command: starts one; it reads its part (JSON) from stdin.
        part: what each is told, beside its own ``listener`` and ``link``, which are descriptors,
            ``number`` (from 1), and ``early``: whether it takes connections before its mounts are
            loaded.
        listener: the socket, which listens.
        count: how many.
        grace: seconds that they have to end.
        say: tells the operator what happened.
        shared: further descriptors that they inherit; `part` names them.
    """

    def __init__(
        self,
        command: Sequence[str],
        part: Mapping[str, Any],
        listener: socket.socket,
        count: int,
        *,
        grace: float,
        say: Callable[[str], object],
        shared: Sequence[int] = (),
    ) -> None:
        self._command, self._part, self._listener = command, part, listener
        self._grace, self._say = grace, say
        self._shared = tuple(shared)
        self._workers = [_Worker(number) for number in range(1, count + 1)]
        self._selector = selectors.DefaultSelector()
        self._begun = False  # all were ready once
        self._told: dict[str, Any] = {}

    def run(self, on_ready: Callable[[], object], check: Callable[[], object]) -> None:
        """Return only by an exception: a signal's, or `VerlRewardError` where no worker can start.

        Args:
            on_ready: called once, when all are.
            check: called now and then; what it raises ends this.
        """
        for worker in self._workers:
            self._start(worker)
        while True:
            check()
            for key, _ in self._selector.select(self._pause()):
                self._hear(key.data)
            for worker in self._workers:
                self._look_after(worker)
            if not self._begun and all(worker.ready for worker in self._workers):
                self._begun = True
                self._tell()
                on_ready()
            self._tell()

    def stop(self) -> None:
        """Have all finish what is under way, and end; kill who does not in time."""
        self._listener.close()
        alive = [w.process for w in self._workers if w.process is not None]
        for process in alive:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        end = monotonic() + self._grace
        for process in alive:
            try:
                process.wait(max(0.0, end - monotonic()))
            except subprocess.TimeoutExpired:
                self._say(f"the worker {process.pid} did not end in time and is killed")
                process.kill()
                process.wait()
        for worker in self._workers:
            self._forget(worker)
        self._selector.close()

    # -- inside ------------------------------------------------------------------------------------

    def _start(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        descriptors = (self._listener.fileno(), theirs.fileno())
        part = {
            **self._part,
            "listener": descriptors[0],
            "link": descriptors[1],
            "number": worker.number,
            "early": not self._begun,
        }
        with theirs:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                pass_fds=(*descriptors, *self._shared),
                start_new_session=True,  # Ctrl-C is for us, who pass it on
            )
        worker.process, worker.link, worker.said = process, ours, b""
        worker.began, worker.ready = monotonic(), False
        self._selector.register(ours, selectors.EVENT_READ, worker)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(part).encode())
        self._send(worker, self._told)

    def _hear(self, worker: _Worker) -> None:
        assert worker.link is not None
        try:
            heard = worker.link.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self._selector.unregister(worker.link)
            worker.link.close()
            worker.link = None
            return
        *lines, worker.said = (worker.said + heard).split(b"\n")
        for line in lines:
            if json.loads(line).get("ready"):
                worker.ready, worker.failures = True, 0

    def _look_after(self, worker: _Worker) -> None:
        if worker.process is None:
            if monotonic() >= worker.again:
                self._start(worker)
            return
        code = worker.process.poll()
        if code is None:
            return
        pid, was_ready = worker.process.pid, worker.ready
        self._forget(worker)
        worker.failures = 0 if was_ready else worker.failures + 1
        lived = monotonic() - worker.began
        worker.quick = 0 if was_ready and lived > _STEADY_SECONDS else worker.quick + 1
        if not was_ready:
            self._give_up(worker, code)
        pause = min(_FIRST_PAUSE * 2 ** (worker.quick - 1), _LONGEST_PAUSE) if worker.quick else 0.0
        worker.again = monotonic() + pause
        self._say(
            f"worker {worker.number} (process {pid}) {_ended(code)};"
            f" another is started in {pause:g} s"
        )

    def _give_up(self, worker: _Worker, code: int) -> None:
        """Raise where there is no use in going on."""
        if self._begun:
            hopeless = worker.failures >= _MAX_FAILURES and not any(w.ready for w in self._workers)
        else:  # by itself, with a message: it would be the same again
            hopeless = code > 0 or worker.failures >= _MAX_FAILURES
        if hopeless:
            times = f", {worker.failures} times in a row" if worker.failures > 1 else ""
            raise VerlRewardError(
                f"worker {worker.number} {_ended(code)} before it was ready{times};"
                " what it said stands above"
            )

    def _forget(self, worker: _Worker) -> None:
        if worker.link is not None:
            self._selector.unregister(worker.link)
            worker.link.close()
        worker.process = worker.link = None
        worker.ready = False

    def _pause(self) -> float:
        waiting = [worker.again for worker in self._workers if worker.process is None]
        return max(0.0, min([_LOOK_SECONDS, *(again - monotonic() for again in waiting)]))

    def _tell(self) -> None:
        ready = sum(worker.ready for worker in self._workers)
        told = {
            "ready": self._begun and ready > 0,
            "workers": len(self._workers),
            "workers_ready": ready,
        }
        if told != self._told:
            self._told = told
            for worker in self._workers:
                self._send(worker, told)

    def _send(self, worker: _Worker, told: Mapping[str, Any]) -> None:
        if worker.link is not None and told:
            with suppress(OSError):  # it is ending, or does not listen any more
                worker.link.send(json.dumps(told).encode() + b"\n")


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
