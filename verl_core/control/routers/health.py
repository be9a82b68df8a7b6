"""``/healthz``, ``/readyz`` and ``/livez``: for probes, and for a client that asks whose knobs it
would turn."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from verl_core import __version__
from verl_core.control.answers import Health, Probe, answer
from verl_core.control.guard import AUTHORISED
from verl_core.control.state import ControlState


def health_router(state: ControlState) -> APIRouter:
    """The routes over `state`'s status."""
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

    @router.get("/readyz", response_model=Probe, responses={503: {"model": Probe}})
    async def get_ready() -> Response:
        """200 once every mount is loaded, in every worker; 503 before, and from SIGTERM on."""
        ready = bool(state.status().get("ready", True))
        found = answer({"ok": ready})
        found.status_code = 200 if ready else 503
        return found

    @router.get("/livez", response_model=Probe)
    async def get_live() -> Response:
        """200 as long as the server's loop turns, loading or not."""
        return answer({"ok": True})

    return router
