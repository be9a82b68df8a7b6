"""``/api/v1/reward/providers``: what is mounted, and a new generation of it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from verl_core.control.answers import Providers, Reloaded, answer, problems
from verl_core.control.body import json_object, media_type_of
from verl_core.control.problem import Problem, key_error, unchanged
from verl_core.control.state import ControlState

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": False,
        "content": {"application/json": {"schema": {"type": "object", "maxProperties": 0}}},
    }
}


def providers_router(state: ControlState) -> APIRouter:
    """The routes over `state`'s mounts."""
    router = APIRouter(prefix="/api/v1/reward/providers", tags=["providers"])

    @router.get("", response_model=Providers, responses=problems())
    def get_providers() -> Response:
        """Each mount: its provider, role, how it runs, the generation that serves with its files'
        digests, the candidate that may follow it, and the last error."""
        newest = state.store.refresh()
        content = {"run_id": state.run_id, "revision": newest.revision}
        return answer(content | {"providers": list(state.providers())})

    @router.post(
        "/{name}/reload",
        response_model=Reloaded,
        responses=problems(400, 404, 409, 413, 415, 422),
        openapi_extra=_BODY,
    )
    async def post_reload(request: Request, name: str) -> Response:
        """Look at a mount's files now, and wait for what comes of it.

        A content that was refused is tried once more. A mount with `execution: process` gets a
        fresh worker, which runs the code that is installed now. The body is empty or `{}`.
        """
        media_type_of(request, "application/json")
        if await request.body() and (keys := await json_object(request)):
            errors = [key_error(key, "there is nothing to say here") for key in list(keys)[:20]]
            raise Problem(422, "invalid-request", unchanged("the body must be {}"), errors=errors)
        found = dict(await run_in_threadpool(_reloaded, state, name))
        outcome, detail = found.pop("outcome"), found.pop("detail")
        if outcome == "refused":
            said = f"the new generation is refused, the old one serves on: {detail}"
            raise Problem(409, "reload-refused", said)
        content = {"run_id": state.run_id, "name": name, "outcome": outcome, "detail": detail}
        return answer({**content, "provider": found})

    return router


def _reloaded(state: ControlState, name: str) -> Any:
    from verl_core.rewards.reload.places import UnknownMount
    from verl_reward_sdk.errors import VerlRewardError

    if state.reload is None:
        raise Problem(404, "not-found", "no mount runs here: there is nothing to reload")
    try:
        return state.reload(name)
    except UnknownMount as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise Problem(404, "unknown-mount", f"{error.message[:200]}{hint}") from error
    except VerlRewardError as error:
        raise Problem(409, "reload-refused", str(error)) from error
