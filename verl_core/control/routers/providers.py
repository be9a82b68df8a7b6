"""``/api/v1/reward/providers``: what is mounted."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from verl_core.control.answers import Providers, answer, problems
from verl_core.control.state import ControlState


def providers_router(state: ControlState) -> APIRouter:
    """The route over `state`'s mounts."""
    router = APIRouter(prefix="/api/v1/reward/providers", tags=["providers"])

    @router.get("", response_model=Providers, responses=problems())
    def get_providers() -> Response:
        """Each mount: its provider, role, score range and how it runs."""
        newest = state.store.refresh()
        content = {"run_id": state.run_id, "revision": newest.revision}
        return answer(content | {"providers": list(state.providers())})

    return router
