"""HEAD wherever GET is: the same status and headers, without the body (RFC 9110, 9.3.2)."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

IS_HEAD = "verl_reward.head"
"""Key of the ASGI scope: the request is HEAD, and an answer without an end must not begin."""


class HeadAsGet:
    """ASGI middleware.

    Args:
        app: what answers GET.
        foreign: prefixes of other apps, which answer HEAD as they like.
    """

    def __init__(self, app: ASGIApp, *, foreign: Collection[str]) -> None:
        self._app = app
        self._foreign = tuple(f"{prefix}/" for prefix in foreign)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or f"{scope['path']}/".startswith(self._foreign):
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET", IS_HEAD: True}, receive, without_body)
