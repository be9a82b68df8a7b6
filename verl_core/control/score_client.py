"""Scoring from Python: rows to a server of `verl-reward serve`, their rewards back.

    with ScoreClient("http://127.0.0.1:8000") as client:
        client.score([{"prompt": "2 + 2?", "response": "4", "columns": {"ground_truth": "4"}}])

A server that has no room says when to come again; the client does, for `patience` seconds.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from verl_core.control.client import ControlClient, NoAnswer
from verl_core.control.media import NDJSON
from verl_reward_sdk.errors import ConfigError

if TYPE_CHECKING:
    import httpx

_SCORE = "/api/v1/reward/score"
_AGAIN = (429, 503)  # no room now; not ready yet, or no reward to be had now
_LONGEST_WAIT = 30.0


class ScoreClient(ControlClient):
    """One server that scores. It keeps connections; a context manager closes them.

    Args:
        url, token: as in `ControlClient`.
        timeout: seconds for an answer.
        patience: seconds in which a request that finds no room is made again, as the server asks.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 120.0,
        patience: float = 60.0,
    ) -> None:
        super().__init__(url, token)
        self._timeout, self._patience = timeout, patience
        self._lock = threading.Lock()
        self._kept: httpx.Client | None = None

    def score(self, rows: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Rewards of `rows`, one batch under one lease, as ``POST /api/v1/reward/score`` gives
        them.

        Args:
            rows: each with ``response``, and what else its mounts read.
            options: ``explain``, ``training``, ``lease``, ``group``, ``timeout``.

        Raises:
            ConfigError: the server refuses the rows; the pointers say which.
            NoAnswer: there is none, or no room within `patience`.
        """
        body = json.dumps({"rows": list(rows), **options})
        end = time.monotonic() + self._patience
        while True:
            answer = self._post(body)
            wait = self._wait(answer, end)
            if wait is None:
                if answer.status_code in (400, 404, 409, 410, 413, 415, 422):
                    raise self._refused(answer.status_code, answer.content)
                return self._read(answer)
            time.sleep(wait)

    def score_lines(
        self, rows: Iterable[Mapping[str, Any]], **options: Any
    ) -> Iterator[dict[str, Any]]:
        """Rewards of any number of rows, as they are scored, in order; memory does not grow.

        A row that cannot be scored gives ``{line, error}`` in its place. Rows are read from `rows`
        in a thread of its own, while answers are read here.

        Args:
            rows, options: as in `score`.

        Raises:
            ConfigError, NoAnswer: the stream as a whole; also where it breaks off.
            Whatever `rows` raises.
        """
        query = urlencode(
            {k: json.dumps(v) if isinstance(v, bool) else v for k, v in options.items()}
        )
        connection = self._open(f"{_SCORE}?{query}" if query else _SCORE)
        sender = _Sender(connection, rows)
        try:
            answer = connection.getresponse()
            if answer.status != 200:
                raise self._refused(answer.status, answer.read(65536))
            for line in answer:
                yield json.loads(line)
        except (OSError, http.client.HTTPException) as error:
            sender.check()
            raise NoAnswer(
                f"the stream from {self.url} broke off: {error or type(error).__name__}",
                "rows that were answered stand; send the others again",
            ) from error
        finally:
            connection.close()
        sender.check()

    def close(self) -> None:
        """Close its connections."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def __enter__(self) -> ScoreClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------

    def _post(self, body: str) -> httpx.Response:
        import httpx

        with self._lock:
            if self._kept is None:
                # As in `ControlClient`: no proxy stands before this machine's own loopback.
                self._kept = httpx.Client(
                    timeout=self._timeout, trust_env=not self._is_local, verify=self._is_tls
                )
        headers = {**self._headers, "Content-Type": "application/json"}
        try:
            return self._kept.post(self.url + _SCORE, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise NoAnswer(
                f"no answer from {self.url}: {error or type(error).__name__}",
                "is `verl-reward serve` running there?",
            ) from error

    @staticmethod
    def _wait(answer: httpx.Response, end: float) -> float | None:
        """Seconds to wait before asking again; None: this answer stands."""
        told = answer.headers.get("retry-after", "")
        if answer.status_code not in _AGAIN or not told.isdigit():
            return None
        wait = min(float(told), _LONGEST_WAIT)
        return wait if time.monotonic() + wait < end else None

    def _open(self, target: str) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=self._timeout)
        try:
            connection.putrequest("POST", parts.path + target)
            for name, value in {**self._headers, "Content-Type": NDJSON}.items():
                connection.putheader(name, value)
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
        except OSError as error:
            connection.close()
            raise NoAnswer(
                f"no answer from {self.url}: {error}", "is `verl-reward serve` running there?"
            ) from error
        return connection

    def _refused(self, status: int, body: bytes) -> Exception:
        try:
            problem = json.loads(body)
            detail = str(problem["detail"])
        except (ValueError, KeyError, TypeError):
            return NoAnswer(f"{self.url} answers HTTP {status}", "is it a control plane?")
        if status in _AGAIN or status >= 500:
            return NoAnswer(f"{self.url} is busy: {detail}", "try again in a moment")
        return ConfigError(f"refused: {detail}")


class _Sender:
    """Sends rows as chunks, in a thread of its own; ends when the connection does."""

    def __init__(
        self, connection: http.client.HTTPConnection, rows: Iterable[Mapping[str, Any]]
    ) -> None:
        self._connection, self._rows = connection, rows
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._send, name="verl-reward-rows", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what `rows` raised."""
        if self._error is not None:
            raise self._error

    def _send(self) -> None:
        rows = iter(self._rows)
        while True:
            try:
                line = next(rows, None)
                text = None if line is None else json.dumps(line).encode() + b"\n"
            except Exception as error:  # noqa: BLE001  (the caller's own rows: told by `check`)
                self._error = error
                self._hang_up()
                return
            try:
                if text is None:
                    self._connection.send(b"0\r\n\r\n")
                    return
                self._connection.send(b"%x\r\n%s\r\n" % (len(text), text))
            except (OSError, AttributeError):  # it was closed: the reader says why
                return

    def _hang_up(self) -> None:
        """End both directions. It is closed by the thread that reads, which may be reading now."""
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
