"""ControlServer: the control plane on a socket, in a thread beside the training loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import uvicorn

from verl_core.control.app import create_app
from verl_core.control.connection import Connection, Limits
from verl_core.control.listen import BACKLOG, listen, url_of
from verl_core.control.scoring.admission import Admission
from verl_core.control.scoring.service import ScoreService
from verl_core.control.state import ControlState
from verl_reward_sdk.errors import VerlRewardError

logger = logging.getLogger(__name__)

_START_SECONDS = 30.0
# So many connections are taken in one turn of the loop, before the first of them can be refused:
# a flood holds no more handles for a moment than some times this.
_AT_ONCE = 32


class _Server(uvicorn.Server):
    """uvicorn's server, which takes, before it stops, whoever waits to be taken."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A connection that the system has made already would be reset with the socket's end.
        waiting = [found for listener in sockets or [] for found in _waiting(listener)]
        for server in self.servers:
            server.close()
        for found in waiting:
            await asyncio.get_running_loop().connect_accepted_socket(self._connection, found)
        await super().shutdown(sockets)

    def _connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


def _nothing() -> None:
    """To check."""


def _waiting(listener: socket.socket) -> list[socket.socket]:
    found: list[socket.socket] = []
    while len(found) < BACKLOG:
        try:
            connection, _ = listener.accept()
        except OSError:  # nobody waits, or there is no handle left for them
            break
        connection.setblocking(False)
        found.append(connection)
    return found


class ControlServer:
    """Serves `state` over HTTP from a daemon thread. No signal handler is touched.

    The socket is bound and listening when the constructor returns, so that a taken port is an
    error before anything is loaded; requests are answered from `start` on.

    Args:
        state: what is served.
        host: the address to listen on.
        port: 0 takes any free one.
        limits: what a client may take; the default ones where None.
        listener: a socket that listens already, which other processes have too; `host` and `port`
            are its.

    Raises:
        ConfigError: the address cannot be bound, or anybody could reach it without a token.
    """

    def __init__(
        self,
        state: ControlState,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        limits: Limits | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        app = create_app(state, allowed_hosts=[host])
        self._scoring: ScoreService | None = app.state.scoring
        is_shared = listener is not None
        self._socket = listener or listen(host, port, has_token=state.token is not None)
        self.url = url_of(host, self._socket)
        self._limits = limits or Limits()
        connection: Any = functools.partial(Connection, limits=self._limits)
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                loop="asyncio",
                http=connection,
                # One that takes many at once leaves none to the others.
                backlog=1 if is_shared else _AT_ONCE,
                ws="none",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=self._limits.grace_seconds,  # type: ignore[arg-type]
            )
        )
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    @property
    def admission(self) -> Admission | None:
        """What is being scored; None where nothing is."""
        return None if self._scoring is None else self._scoring.admission

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self.url.rpartition(":")[2])

    def start(self) -> None:
        """Begin to answer; returns when requests are answered."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="verl-reward-control", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if self._ended.is_set() or time.monotonic() > deadline:
                self.stop()
                why = self._failure or f"no answer within {_START_SECONDS:.0f} s"
                raise VerlRewardError(f"the control plane at {self.url} did not start: {why}")
            time.sleep(0.005)
        self._socket.listen(BACKLOG)  # uvicorn lets no more wait than it takes at once

    def wait(self, check: Callable[[], object] = _nothing) -> None:
        """Return only by an exception: a signal's, or that the server has ended by itself.

        Args:
            check: called once a second; what it raises ends the waiting.

        Raises:
            VerlRewardError: it has.
        """
        while not self._ended.wait(1.0):  # with a limit: Ctrl-C comes through on Windows too
            check()
        raise VerlRewardError(f"the control plane at {self.url} has ended: {self._failure}")

    def stop(self) -> None:
        """Answer what has begun, for a few seconds at most, and free the port."""
        self._server.should_exit = True
        if self._thread is not None:
            # Not `Thread.join`: interrupted by Ctrl-C, it takes a running thread for a dead one.
            grace = self._limits.grace_seconds + self._limits.linger_seconds
            if not self._ended.wait(grace + 2):
                self._server.force_exit = True
                self._ended.wait(grace)
            self._thread = None
        if self._scoring is not None:
            self._scoring.close()
        self._socket.close()

    def __enter__(self) -> ControlServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except (Exception, SystemExit) as error:  # `start` reports it, if it still waits
            self._failure = error
            logger.exception("the control plane at %s has ended", self.url)
        finally:
            self._ended.set()
