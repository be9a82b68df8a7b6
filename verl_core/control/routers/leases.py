"""``/api/v1/reward/leases``: leases for the workers of other trainers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from verl_core.control.answers import LeaseAnswer, answer, problems
from verl_core.control.body import json_object
from verl_core.control.problem import Problem, key_error, unchanged
from verl_core.control.state import ControlState
from verl_core.rewards.lease_book import GivenLease
from verl_reward_sdk.errors import did_you_mean, nearest

_KEYS = ("run_id", "group", "step")
_LONGEST = 200
_LAST_STEP = 2**53 - 1
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["run_id", "group"],
                    "additionalProperties": False,
                    "properties": {
                        "run_id": {"type": "string", "description": "As GET …/weights tells it."},
                        "group": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": _LONGEST,
                            "description": "Names what is scored under one lease, for good.",
                        },
                        "step": {
                            "type": ["integer", "null"],
                            "minimum": 0,
                            "maximum": _LAST_STEP,
                            "description": "Whose scheduled values the weights have; by default"
                            " the run's own step in progress.",
                        },
                    },
                },
                "example": {"run_id": "customer-service-1", "group": "step 7", "step": 7},
            }
        },
    }
}


def leases_router(state: ControlState) -> APIRouter:
    """The routes over `state`'s book of leases."""
    router = APIRouter(prefix="/api/v1/reward/leases", tags=["leases"])
    book = state.leases

    @router.post(
        "",
        response_model=LeaseAnswer,
        status_code=201,
        responses={
            **problems(400, 409, 413, 415, 422, 429, 503),
            200: {"model": LeaseAnswer, "description": "Somebody has the lease already: it is his"},
        },
        openapi_extra=_BODY,
    )
    async def post_lease(request: Request) -> Response:
        """Take the lease on a group: the first who asks fixes revision and generations.

        Later ones get the same lease, with the same id, and 200. It ends with DELETE, or when it
        was not used for `expires_in` seconds; asking again is a use. A group whose lease has ended
        has a new one under the same revision.
        """
        run_id, group, step = _asked(await json_object(request))
        given = await run_in_threadpool(book.give, run_id, group, step)
        return answer(_shown(state.run_id, given), status=201 if given.is_new else 200)

    @router.delete("/{lease_id}", status_code=204, responses=problems(404, 410, 503))
    def delete_lease(lease_id: str) -> Response:
        """End a lease, for all who hold it: nothing is scored under it any more."""
        book.end(lease_id)
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    return router


def _shown(run_id: str, given: GivenLease) -> dict[str, Any]:
    lease = given.lease
    return {
        "id": given.id,
        "run_id": run_id,
        "group": given.group,
        "revision": lease.revision,
        "weights": lease.weights,
        "generations": lease.generations,
        "step": lease.step,
        "expires_in": given.expires_in,
    }


def _asked(body: dict[str, Any]) -> tuple[str, str, int | None]:
    """The run, group and step that a body names.

    Raises:
        Problem: 422, with each key that is wrong.
    """
    errors = []
    for key in body:
        if key not in _KEYS:
            short = key if len(key) <= 100 else key[:100]
            said = f"there is no such key; {did_you_mean(short, _KEYS)}".rstrip("; ")
            match = nearest(short, _KEYS)
            errors.append(key_error(key, said, **({"nearest": match} if match else {})))
    for key in ("run_id", "group"):
        value = body.get(key)
        if key not in body:
            errors.append(key_error(key, "it is missing"))
        elif not isinstance(value, str) or not 1 <= len(value) <= _LONGEST or not _is_text(value):
            errors.append(key_error(key, f"it must be a text of 1 to {_LONGEST} characters"))
    step = body.get("step")
    whole = isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= _LAST_STEP
    if step is not None and not whole:
        errors.append(key_error("step", "it must be a whole number >= 0"))
    if errors:
        said = "; ".join(f"{error['key']}: {error['detail']}" for error in errors[:20])
        raise Problem(422, "invalid-request", unchanged(said), errors=errors[:20])
    return body["run_id"], body["group"], step


def _is_text(value: str) -> bool:
    """Whether it can be kept and shown: no lone surrogates, no control characters."""
    return value.isprintable()
