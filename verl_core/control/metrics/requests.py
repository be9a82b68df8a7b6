"""Every request: counted by its route, given an id, and told to the log.

Outermost of all, so that what the guard refuses counts too. A request is named by its route, never
by its path or query: those are the client's own words, without number, and may hold what no log
should.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable
from http import HTTPStatus
from time import perf_counter
from typing import Any

from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verl_core.control.metrics.board import Board, Family

logger = logging.getLogger("verl_core.control.request")

REQUEST_ID = b"x-request-id"
NOTES = "verl_reward.notes"
"""Key of the ASGI scope: what a route has to say of its request in the log, a dict."""

OTHER = "other"
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", OTHER)
_LEFT = 499  # the client did not wait for the answer
_STATUSES = (*(status.value for status in HTTPStatus if status.value >= 200), _LEFT)
_GIVEN = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def note(scope: Scope, **facts: Any) -> None:
    """Have the log's line of this request tell `facts` too: numbers and names, no bodies."""
    notes = scope.get(NOTES)
    if notes is not None:
        notes.update(facts)


class Routes:
    """The routes of an application, and which one a path belongs to.

    Args:
        paths: as FastAPI writes them, such as ``/api/v1/reward/providers/{name}/reload``.
        prefixes: of other applications.
    """

    def __init__(self, paths: Iterable[str], prefixes: Collection[str]) -> None:
        known = tuple(dict.fromkeys(paths))
        self._plain = frozenset(path for path in known if "{" not in path)
        self._patterns = [(compile_path(path)[0], path) for path in known if "{" in path]
        self._prefixes = tuple(prefixes)
        self.names = (*known, *self._prefixes, OTHER)

    def of(self, path: str) -> str:
        """The route that `path` belongs to, or `OTHER`."""
        if path in self._plain:
            return path
        for pattern, name in self._patterns:
            if pattern.match(path):
                return name
        for prefix in self._prefixes:
            if f"{path}/".startswith(f"{prefix}/"):
                return prefix
        return OTHER


def request_families(routes: Routes) -> list[Family]:
    """The families of requests to these routes."""
    return [
        Family(
            "counter",
            "verl_reward_http_requests",
            "Requests by route and status; 499: the client did not wait for the answer.",
            ("method", "route", "status"),
            tuple(
                (method, route, str(status))
                for method in _METHODS
                for route in routes.names
                for status in (*_STATUSES, OTHER)
            ),
            shows_zero=False,
        ),
        Family(
            "histogram",
            "verl_reward_http_request_seconds",
            "From a request's headers to its answer's last byte; streams of events are left out.",
            ("route",),
            tuple((route,) for route in routes.names),
            shows_zero=False,
        ),
    ]


class Requests:
    """ASGI middleware.

    Args:
        app: answers.
        routes: of `app`.
        board: has `request_families`.
        facts: what every line of the log tells, such as the run.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: Routes,
        board: Board,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._app, self._routes, self._board, self._facts = app, routes, board, facts
        self._seconds = {
            route: board.at("verl_reward_http_request_seconds", route) for route in routes.names
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        request_id = _request_id(scope)
        notes: dict[str, Any] = {}
        scope[NOTES] = notes
        status, is_stream, is_whole = _LEFT, False, False

        async def told(message: Message) -> None:
            nonlocal status, is_stream, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                is_stream = any(
                    name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in headers
                )
                message = {**message, "headers": [*headers, (REQUEST_ID, request_id)]}
            elif message["type"] == "http.response.body":
                is_whole = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, told)
        finally:
            seconds = perf_counter() - began
            route = self._routes.of(scope["path"])
            if not is_whole and not is_stream:
                notes["cut"] = True
            self._count(scope["method"], route, status)
            if not is_stream:
                self._board.see(self._seconds[route], seconds)
            if logger.isEnabledFor(logging.INFO):
                self._log(scope, route, status, seconds, request_id, notes)

    def _count(self, method: str, route: str, status: int) -> None:
        method = method if method in _METHODS else OTHER
        told = str(status) if status in _STATUSES else OTHER
        place = self._board.at("verl_reward_http_requests", method, route, told)
        self._board.add([(place, 1.0)])

    def _log(
        self,
        scope: Scope,
        route: str,
        status: int,
        seconds: float,
        request_id: bytes,
        notes: dict[str, Any],
    ) -> None:
        method = scope["method"] if scope["method"] in _METHODS else OTHER
        fields = {
            "event": "request",
            "method": method,
            "route": route,
            "status": status,
            "seconds": round(seconds, 6),
            **self._facts(),
            **notes,
            "request_id": request_id.decode("ascii"),
        }
        logger.info("%s %s %d", method, route, status, extra={"fields": fields})


def _request_id(scope: Scope) -> bytes:
    """The client's own, or a new one."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID and _GIVEN.fullmatch(value):
            return bytes(value)
    return secrets.token_hex(8).encode("ascii")
