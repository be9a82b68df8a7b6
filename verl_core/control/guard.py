"""What every request passes before any route, plugins' routes too: Host, token, body size.

- Host: a page of some web site that had its name resolved to 127.0.0.1 (DNS rebinding) still sends
  its own name; only names that this server goes by are answered.
- Token: where one is set, a request must show it, or the read token where that is enough
  (`verl_core.control.access`). What is the same in every installation (files of the page,
  ``/docs``, ``/openapi.json``) and ``/healthz``, which then says no more than live and ready, are
  open.
- Body: counted as it is read, so that a chunked one cannot fill the memory. One that is too large
  ends the connection: nothing more of it is read.

What an app raises all the same is logged and becomes a 500.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Collection, Iterable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verl_core.control.access import Access, Tokens, needed
from verl_core.control.problem import Problem
from verl_core.control.redaction import traceback_of
from verl_core.control.token import READ_TOKEN_VARIABLE, TOKEN_VARIABLE

logger = logging.getLogger(__name__)

AUTHORISED = "verl_reward.authorised"
"""Key of the ASGI scope: whether this request may read: it showed a token, or none is needed."""

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_OPEN_PATHS = ("/healthz", "/readyz", "/livez", "/docs", "/openapi.json", "/ui")


_CLOSE = {"Connection": "close"}


class BodyTooLarge(HTTPException):
    """413; raised out of the app's own reading of the body."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body is larger than {limit} bytes", headers=dict(_CLOSE))


class Guard:
    """ASGI middleware.

    Args:
        app: what is guarded.
        token: what ``Authorization: Bearer`` must carry; None: nothing.
        read_token: what it must carry at least, where nothing is changed.
        scoring: paths whose POST changes nothing.
        secrets: gives the texts that no log may show.
        allowed_hosts: names beside the loopback ones and this machine's.
        max_body: bytes, or what gives a request's: None where it has no end, and its route sees
            to its memory.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        allowed_hosts: Collection[str],
        max_body: int | Callable[[Scope], int | None],
        read_token: str | None = None,
        scoring: Collection[str] = (),
        secrets: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._app = app
        self._tokens = Tokens(token, read_token)
        self._scoring = frozenset(scoring)
        self._secrets = secrets
        own = {socket.gethostname(), *allowed_hosts}
        self._hosts = _LOOPBACK_NAMES | {_host_name(host) for host in own}
        self._max_body = max_body if callable(max_body) else lambda _: max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        problem = self._refusal(scope)
        if problem is None:
            await self._answered(scope, self._counted(scope, receive), send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await problem.response()(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app. A bug in it is logged, and is an answer rather than a lost connection."""
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise
            said = traceback_of(error, self._secrets())
            logger.error("%s %s failed\n%s", scope["method"], scope["path"], said)
            detail = "a bug of the control plane or of a plugin; the log has the traceback"
            await Problem(500, "internal", detail).response()(scope, receive, send)

    def _refusal(self, scope: Scope) -> Problem | None:
        hosts = [value.decode("latin-1") for value in _values(scope, b"host")]
        if len(hosts) != 1 or not self._is_own(_host_name(hosts[0]), scope):
            return Problem(
                421,
                "foreign-host",
                "this server does not go by the name in the Host header; call it as localhost, by"
                " its address, or by a name that its configuration allows",
            )
        access = self._tokens.access(_values(scope, b"authorization"))
        scope[AUTHORISED] = access >= Access.USE
        problem = None if _is_open(scope["path"]) else _denial(access, needed(scope, self._scoring))
        if problem is not None:
            return problem
        limit = self._max_body(scope) if scope["type"] == "http" else None
        for value in _values(scope, b"content-length"):
            if limit is not None and value.isdigit() and int(value) > limit:
                detail = str(BodyTooLarge(limit).detail)
                return Problem(413, "body-too-large", detail, headers=_CLOSE)
        return None

    def _is_own(self, host: str, scope: Scope) -> bool:
        if host in self._hosts:
            return True
        # The very address at which the request arrived. A name never equals it, so that a rebound
        # name does not pass.
        address = _address(host)
        return address is not None and address == _address(str((scope.get("server") or ("",))[0]))

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        limit = self._max_body(scope) if scope["type"] == "http" else None
        if limit is None:
            return receive
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > limit:
                    raise BodyTooLarge(limit)
            return message

        return counted


def _denial(access: Access, need: Access) -> Problem | None:
    if access >= need:
        return None
    if access is Access.NONE:
        return Problem(
            401,
            "unauthorised",
            "send the token as 'Authorization: Bearer …' (clients of verl-reward take it from"
            f" {TOKEN_VARIABLE}, or from {READ_TOKEN_VARIABLE} if they change nothing)",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return Problem(
        403,
        "read-only-token",
        "this is the read token: it may look and score. A change asks for that of"
        f" {TOKEN_VARIABLE}. Nothing was changed.",
        headers={"WWW-Authenticate": 'Bearer error="insufficient_scope"'},
    )


def _values(scope: Scope, name: bytes) -> Iterable[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _is_open(path: str) -> bool:
    return path == "/" or any(
        path == known or path.startswith(known + "/") for known in _OPEN_PATHS
    )


def _host_name(host: str) -> str:
    """A Host header's name, without port, brackets and the root's dot."""
    host = host.strip().casefold()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    if name and ":" not in name and (port.isdigit() or not port):
        host = name
    return host.rstrip(".")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped
