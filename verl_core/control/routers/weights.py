"""``/api/v1/reward/weights``: read and change the weights of the run."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from verl_core.config.limits import MAX_WEIGHT
from verl_core.control.answers import History, Weights, answer, problems
from verl_core.control.body import json_object
from verl_core.control.headers import AUTHOR, REASON, author_of, expected_revisions, reason_of
from verl_core.control.problem import etag
from verl_core.control.state import ControlState
from verl_core.rewards.weights import WeightSnapshot

_SHOWN = ("revision", "step", "weights", "pinned", "schedules", "effective_step")
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {
                        "type": "number",
                        "minimum": 0,
                        "maximum": MAX_WEIGHT,
                    },
                },
                "example": {"accuracy": 6.0, "tone": 1.0, "compliance": 0.5},
            }
        },
    },
    "parameters": [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, **said}
        for name, said in {
            "If-Match": {
                "description": "Make the change only while this is the newest ETag; a list of tags,"
                " or * for any. Compared strongly (RFC 9110)."
            },
            AUTHOR: {"description": "Who makes the change; UTF-8 may be percent-encoded."},
            REASON: {"description": "Why; as the author."},
        }.items()
    ],
}


def weights_router(state: ControlState) -> APIRouter:
    """The routes over `state`'s store."""
    router = APIRouter(prefix="/api/v1/reward/weights", tags=["weights"])
    store = state.store

    def shown(snapshot: WeightSnapshot) -> Response:
        fields = snapshot.as_dict()
        content = {"run_id": state.run_id, **{name: fields[name] for name in _SHOWN}}
        return answer(content, etag=etag(snapshot.revision))

    @router.get("", response_model=Weights, responses=problems())
    def get_weights() -> Response:
        """The weights in force, or those that wait for the next step. Never 304."""
        return shown(store.refresh())

    @router.post(
        "",
        response_model=Weights,
        responses=problems(400, 412, 413, 415, 422, 503),
        openapi_extra=_BODY,
    )
    async def post_weights(request: Request) -> Response:
        """Merge: the named weights change and are pinned, the others stay.

        All of the body is taken, or nothing. It takes effect with the next step. A weight is a
        number from 0 to a million.
        """
        changes = await json_object(request)
        author, reason = author_of(request), reason_of(request)
        expected = expected_revisions(request)
        after = await run_in_threadpool(
            store.update, changes, author=author, reason=reason, if_revision=expected
        )
        return shown(after)

    @router.get("/history", response_model=History, responses=problems(422))
    def get_history(limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> Response:
        """The audit log, newest first."""
        newest = store.refresh()
        entries = [entry.as_dict() for entry in store.history(limit)]
        content = {"run_id": state.run_id, "revision": newest.revision, "history": entries}
        return answer(content)

    return router
