"""``GET /api/v1/reward/weights/events``: every change of the weights, as it is made."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from verl_core.control.answers import problems
from verl_core.control.events import EventStream, WeightEvents
from verl_core.control.problem import Problem
from verl_core.control.state import ControlState

LAST = "Last-Event-ID"
_REVISION = re.compile(r"[0-9]{1,18}")
_TOLD: dict[str, Any] = {
    "parameters": [
        {
            "name": LAST,
            "in": "header",
            "required": False,
            "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"},
            "description": "The last revision that the client knows: all later ones are told.",
        }
    ]
}


def events_router(state: ControlState) -> APIRouter:
    """The route over `state`'s store."""
    router = APIRouter(prefix="/api/v1/reward/weights", tags=["weights"])
    events = WeightEvents(state)

    @router.get(
        "/events",
        response_class=Response,
        responses={
            200: {
                "description": "Server-sent events without an end.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **problems(422, 503),
        },
        openapi_extra=_TOLD,
    )
    async def get_events(request: Request) -> Response:
        """Every change of the weights as a server-sent event, by whatever process it is made.

        An event's id is the revision, its data what GET …/weights answers. The first is the newest
        revision; with Last-Event-ID, all that came after that one. Comments are signs of life.
        """
        return EventStream(events, _last(request))

    return router


def _last(request: Request) -> int | None:
    """The revision that the client knows. Raises `Problem` (422)."""
    given = request.headers.get(LAST)
    if not given:
        return None
    if _REVISION.fullmatch(given) is None:
        errors = [{"parameter": LAST, "detail": "it is no revision"}]
        detail = f"{LAST} is {given[:100]!r}; send the id of an event, or leave it out"
        raise Problem(422, "invalid-request", detail, errors=errors)
    return int(given)
