"""A server that shows and changes nothing: every request that would change is refused in words."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from verl_core.control.problem import Problem

_READS = ("GET", "HEAD", "OPTIONS")


class ReadOnly:
    """ASGI middleware.

    Args:
        app: what is read.
        reason: why it is only read, and what to do instead.
        run_id: named in every answer.
    """

    def __init__(self, app: ASGIApp, *, reason: str, run_id: str) -> None:
        self._app = app
        self._reason, self._run_id = reason, run_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READS:
            await self._app(scope, receive, send)
            return
        problem = Problem(409, "read-only", f"{self._reason}. Nothing was changed.")
        await problem.response(run_id=self._run_id)(scope, receive, send)
