"""One client's connection, bounded: how many there are, how long a request and an answer may stall.

uvicorn itself waits for ever for the rest of a request, and for a client that does not read. Each
such connection holds one of the process's file handles, which the trainer needs for its own files.
A long answer (a stream of events) is not bounded: only a client that stops reading it is, and one
whose machine is gone. When the server stops, `STOPPING` tells such an answer to come to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from verl_core.control.media import is_stream

STOPPING = "verl_reward.stopping"
"""Key of the ASGI scope's ``state``: an `asyncio.Event`, set when the server begins to stop."""

_NO_ROOM = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\n"
    b"Content-Length: 0\r\n\r\n"
)


_CLOSE = (b"connection", b"close")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may take.

    Args:
        connections: open at once; a further one is closed as soon as it is accepted.
        request_seconds: from the connection, or the first byte of a further request on it, to the
            last byte of the request, body included.
        stall_seconds: without a byte of an answer being taken.
        goodbye_seconds: in which a client whose request was not read to its end, and never will
            be, can read the answer before the connection is reset.
        unread_bytes: of a body that are passed over once it has been answered.
        grace_seconds: in which the server, when it stops, answers what has come in whole.
        linger_seconds: in which, when it stops, an idle connection may still bring a request, and
            one that has begun may bring its rest: 0 closes them at once.
    """

    connections: int = 128
    request_seconds: float = 15.0
    stall_seconds: float = 15.0
    goodbye_seconds: float = 1.0
    unread_bytes: int = 1 << 20
    grace_seconds: float = 5.0
    linger_seconds: float = 0.0


def _quiet_logger() -> logging.Logger:
    """Of what uvicorn would tell about connections, only failures: clients' mistakes and requests
    that are cancelled when the server stops are no news, and a client could fill the log."""
    quiet = logging.getLogger(f"{__name__}.http")
    quiet.setLevel(logging.ERROR)
    quiet.addFilter(lambda record: not _is_cancelled(record))
    return quiet


def _is_cancelled(record: logging.LogRecord) -> bool:
    return bool(record.exc_info) and isinstance(record.exc_info[1], asyncio.CancelledError)  # type: ignore[index]


_LOGGER = _quiet_logger()


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 connection within `Limits`."""

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _LOGGER
        self._limits = limits
        self._owed: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._unread = 0
        self._heard = 0.0
        self._is_last = False  # the server stops: the next answer is this connection's last
        self._real: asyncio.Transport
        self._stopping = asyncio.Event()
        self.app_state = {**self.app_state, STOPPING: self._stopping}

    # -- from asyncio -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._real = transport
        super().connection_made(_Parting(transport, self))  # type: ignore[arg-type]
        if len(self.connections) > self._limits.connections:
            self.connections.discard(self)
            transport.write(_NO_ROOM)
            transport.abort()
            return
        self._bound_silence(transport)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._owed, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_passed_over():
            self._unread += len(data)
            if self._unread > self._limits.unread_bytes:
                self.transport.close()
                return
        self._heard = self.loop.time()
        super().data_received(data)
        if self._is_last and self._is_asked():
            self._make_last()
        self._follow()

    def eof_received(self) -> None:
        super().eof_received()
        self._watch_answer()  # asyncio closes now, once all is written

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None and not self.transport.is_closing():
            self._stalled.cancel()
            self._stalled = None

    # -- from uvicorn -----------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def shutdown(self) -> None:
        """Begin to stop: a request that has not come whole is dropped, others are answered; with
        `Limits.linger_seconds` that one is awaited too, and so is one that is on its way."""
        self._stopping.set()
        if self._limits.linger_seconds and not self._is_passed_over():
            self._is_last = True
            if self._is_asked():
                self._make_last()
            else:
                self.loop.call_later(self._limits.linger_seconds, self._end_if_idle)
        elif self.conn.their_state is h11.SEND_BODY:
            self._real.abort()
        else:
            super().shutdown()

    # -- inside -----------------------------------------------------------------------------------

    def part(self) -> None:
        """Close, once all is written; of a request that is still coming in nothing more is read.

        A socket that is closed over unread bytes resets the connection, and the client may lose
        the answer that tells it why: so only the sending side is closed at first.
        """
        if self.conn.their_state in (h11.SEND_BODY, h11.ERROR):
            self._real.pause_reading()
            self._real.write_eof()
            self.loop.call_later(self._limits.goodbye_seconds, self._say_goodbye)
        else:
            self._real.close()
        self._watch_answer()

    def _is_asked(self) -> bool:
        """Whether a request is being read or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _make_last(self) -> None:
        """Have the answer under way say that no other follows."""
        self.cycle.keep_alive = False
        if _CLOSE not in self.cycle.scope["headers"]:  # where uvicorn looks for it
            self.cycle.scope["headers"] = [*self.cycle.scope["headers"], _CLOSE]

    def _end_if_idle(self) -> None:
        if not self._is_asked() and not self.transport.is_closing():
            super().shutdown()

    def _bound_silence(self, transport: asyncio.Transport) -> None:
        """Drop a client whose machine has gone without a word: what it is sent is confirmed within
        the time in which it must take an answer. The system alone would try for a quarter hour."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has it
        connection = transport.get_extra_info("socket")
        if option is None or connection is None:
            return
        with contextlib.suppress(OSError):  # no TCP, such as a socket of the file system
            milliseconds = max(1, round(self._limits.stall_seconds * 1000))
            connection.setsockopt(socket.IPPROTO_TCP, option, milliseconds)

    def _say_goodbye(self) -> None:
        if self._real.get_write_buffer_size() and not self._real.is_closing():
            self.loop.call_later(self._limits.goodbye_seconds, self._say_goodbye)
        else:
            self._real.abort()

    def _is_passed_over(self) -> bool:
        """Whether what comes in belongs to a request that has been answered already."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and self.conn.their_state is h11.SEND_BODY

    def _follow(self) -> None:
        """Run the clock of a request from its first byte to its last."""
        is_owed = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if self.timeout_keep_alive_task is not None and self.conn.their_state is h11.IDLE:
            is_owed = False  # nothing of a further one has come; uvicorn's own clock runs
        if not is_owed:
            if self._owed is not None:
                self._owed.cancel()
            self._owed = None
            self._unread = 0
        elif self._owed is None:
            self._owed = self.loop.call_later(self._limits.request_seconds, self._late)

    def _late(self) -> None:
        """The rest of a request is overdue. A stream is as long as it likes: of it only a part is,
        and not while it is us who do not read on."""
        heard = self._heard + self._limits.request_seconds - self.loop.time()
        if self._is_asked() and is_stream(self.scope) and (self.flow.read_paused or heard > 0):
            wait = max(heard, 0.1 * self._limits.request_seconds)
            self._owed = self.loop.call_later(wait, self._late)
        else:
            self._real.abort()

    def _watch_answer(self) -> None:
        if self._stalled is None:
            self._look_at_answer(None)

    def _look_at_answer(self, before: int | None) -> None:
        """Drop the client if it has taken nothing since the last look; else look again later."""
        left = self._real.get_write_buffer_size()
        if before is not None and left >= before:
            self._real.abort()
            return
        wait = self._limits.stall_seconds
        self._stalled = self.loop.call_later(wait, self._look_at_answer, left)


class _Parting:
    """A transport whose `close` is its connection's `part`; all else is the transport's."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self._has_parted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._has_parted or self._transport.is_closing()

    def close(self) -> None:
        if not self.is_closing():
            self._has_parted = True
            self._connection.part()
