"""``/healthz``: for probes, and for a client that asks whose knobs it would turn."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from verl_core import __version__
from verl_core.control.answers import Health, answer
from verl_core.control.guard import AUTHORISED
from verl_core.control.state import ControlState


def health_router(state: ControlState) -> APIRouter:
    """The route over `state`'s status."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz", response_model=Health)
    def get_health(request: Request) -> Response:
        """Live and ready; to a client that may read the run also its name, step and version."""
        status = state.status()
        content: dict[str, Any] = {"live": True, "ready": bool(status.get("ready", True))}
        if request.scope.get(AUTHORISED):
            step = status.get("step")
            content |= {
                "run_id": state.run_id,
                "step": state.store.snapshot().step if step is None else step,
                "version": __version__,
            }
            content |= {key: value for key, value in status.items() if key not in content}
        return answer(content)

    return router
