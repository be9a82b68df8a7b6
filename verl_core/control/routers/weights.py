"""``/api/v1/reward/weights``: read and change the weights of the run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from verl_core.config.limits import MAX_WEIGHT
from verl_core.config.names import composed
from verl_core.control.answers import History, Weights, answer, problems
from verl_core.control.body import json_object
from verl_core.control.headers import (
    AUTHOR,
    REASON,
    author_of,
    expected_revisions,
    has_if_match,
    no_if_match,
    reason_of,
)
from verl_core.control.problem import Problem, etag, key_error, refused_weights, unchanged
from verl_core.control.state import ControlState
from verl_core.rewards.weights import WeightError, WeightSnapshot

_SHOWN = ("revision", "step", "weights", "pinned", "schedules", "effective_step")
_MAP: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"type": "number", "minimum": 0, "maximum": MAX_WEIGHT},
}
_BACK: dict[str, Any] = {
    "type": "object",
    "required": ["revision"],
    "additionalProperties": False,
    "properties": {"revision": {"type": "integer", "minimum": 1}},
}
_EXAMPLE = {"accuracy": 6.0, "tone": 1.0, "compliance": 0.5}


def _told(
    schema: dict[str, Any] | None = None, example: Any = None, *, if_match: bool = False
) -> dict[str, Any]:
    """What OpenAPI says of a change: its body, and the headers that all changes have.

    Args:
        schema: of the body; None: there is none.
        example: a body.
        if_match: that header is required.
    """
    said: dict[str, dict[str, Any]] = {
        "If-Match": {
            "description": "Make the change only while this is the newest ETag; a list of tags, or"
            " * for any. Compared strongly (RFC 9110).",
            "required": if_match,
        },
        AUTHOR: {"description": "Who makes the change; UTF-8 may be percent-encoded."},
        REASON: {"description": "Why; as the author."},
    }
    parameters = [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, **more}
        for name, more in said.items()
    ]
    if schema is None:
        return {"parameters": parameters}
    content = {"application/json": {"schema": schema, "example": example}}
    return {"parameters": parameters, "requestBody": {"required": True, "content": content}}


def weights_router(state: ControlState) -> APIRouter:
    """The routes over `state`'s store."""
    router = APIRouter(prefix="/api/v1/reward/weights", tags=["weights"])
    store = state.store

    def shown(snapshot: WeightSnapshot) -> Response:
        return answer(weights_answer(state.run_id, snapshot), etag=etag(snapshot.revision))

    async def changed(
        request: Request, change: Callable[..., WeightSnapshot], *what: Any, **how: Any
    ) -> Response:
        """Make a change with who, why and If-Match out of the headers."""
        author, reason = author_of(request), reason_of(request)
        made = functools.partial(
            change,
            *what,
            author=author,
            reason=reason,
            if_revision=expected_revisions(request),
            **how,
        )
        return shown(await run_in_threadpool(made))

    @router.get("", response_model=Weights, responses=problems())
    def get_weights() -> Response:
        """The weights in force, or those that wait for the next step. Never 304."""
        return shown(store.refresh())

    @router.post(
        "",
        response_model=Weights,
        responses=problems(400, 412, 413, 415, 422, 503),
        openapi_extra=_told(_MAP, _EXAMPLE),
    )
    async def post_weights(request: Request) -> Response:
        """Merge: the named weights change and are pinned, the others stay.

        All of the body is taken, or nothing. It takes effect with the next step. A weight is a
        number from 0 to a million.
        """
        return await changed(request, store.update, await json_object(request))

    @router.put(
        "",
        response_model=Weights,
        responses=problems(400, 412, 413, 415, 422, 428, 503),
        openapi_extra=_told(_MAP, _EXAMPLE, if_match=True),
    )
    async def put_weights(request: Request) -> Response:
        """Replace: the body names every mount, and all of them are pinned.

        If-Match says which revision was looked at when the body was written: the change is made
        only while that is the newest.
        """
        if not has_if_match(request):
            raise no_if_match((await run_in_threadpool(store.refresh)).revision)
        return await changed(request, store.update, await json_object(request), replace=True)

    @router.post(
        "/rollback",
        response_model=Weights,
        responses=problems(400, 412, 413, 415, 422, 503),
        openapi_extra=_told(_BACK, {"revision": 3}),
    )
    async def post_rollback(request: Request) -> Response:
        """Make the weights of an old revision a new one: its numbers, pins and schedules."""
        return await changed(request, store.rollback, _revision(await json_object(request)))

    @router.delete(
        "/pins/{name:path}",
        response_model=Weights,
        responses=problems(400, 404, 412, 422, 503),
        openapi_extra=_told(),
    )
    async def delete_pin(name: str, request: Request) -> Response:
        """Clear a pin: the weight returns to the number or schedule of its config."""
        try:
            return await changed(request, store.unpin, name)
        except WeightError as error:
            if composed(name) not in error.reasons:  # the policy refuses what would be in force
                raise
            raise _no_pin(error) from error

    @router.get("/history", response_model=History, responses=problems(422))
    def get_history(
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    ) -> Response:
        """The audit log, newest first.

        `before` gives the entries of revisions below it: to read on, name the last one that came.
        """
        newest = store.refresh()
        entries = [entry.as_dict() for entry in store.history(limit, before=before)]
        content = {"run_id": state.run_id, "revision": newest.revision, "history": entries}
        return answer(content)

    return router


def weights_answer(run_id: str, snapshot: WeightSnapshot) -> dict[str, Any]:
    """A snapshot in the form of `Weights`."""
    fields = snapshot.as_dict()
    return {"run_id": run_id, **{name: fields[name] for name in _SHOWN}}


def _revision(body: dict[str, Any]) -> int:
    """The revision that a rollback names. Raises `Problem` (422)."""
    revision = body.get("revision")
    errors = [key_error(key, "there is no such key") for key in body if key != "revision"][:20]
    if "revision" not in body:
        errors.append(key_error("revision", "it is missing"))
    elif isinstance(revision, bool) or not isinstance(revision, int):
        errors.append(key_error("revision", "it must be a whole number, such as 3"))
    if errors or not isinstance(revision, int):
        said = "; ".join(f"{error['key']}: {error['detail']}" for error in errors)
        raise Problem(422, "invalid-request", unchanged(said), errors=errors)
    return revision


def _no_pin(error: WeightError) -> Problem:
    """404: there is no pin of that name."""
    problem = refused_weights(error)
    return Problem(404, "no-pin", problem.detail, errors=problem.errors)
