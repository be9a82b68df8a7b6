"""``GET /metrics``: for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from verl_core.control.answers import problems
from verl_core.control.metrics.exposition import Page

PATH = "/metrics"


def metrics_router(page: Page) -> APIRouter:
    """The route over `page`."""
    router = APIRouter(tags=["metrics"])

    @router.get(
        PATH,
        response_class=Response,
        responses={
            200: {
                "description": "Figures of all workers together.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            },
            **problems(),
        },
    )
    def get_metrics(request: Request) -> Response:
        """What was scored, failed and asked, how long it took, and the weights in force, for
        Prometheus: in its own text format, or OpenMetrics where Accept asks for that."""
        body, media_type = page.text(request.headers.get("accept", ""))
        headers = {"Content-Type": media_type, "Cache-Control": "no-store"}
        return Response(body, headers=headers)

    return router
