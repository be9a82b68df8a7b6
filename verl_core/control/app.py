"""The application: guard, routes, documents, and the routes of plugins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.routing import Route
from starlette.types import Scope

from verl_core import __version__
from verl_core.control.answers import ProblemDocument
from verl_core.control.documents import add_documents
from verl_core.control.guard import Guard
from verl_core.control.head import HeadAsGet
from verl_core.control.lane import Lane
from verl_core.control.logs import log_changes
from verl_core.control.media import is_stream
from verl_core.control.metrics.board import Board
from verl_core.control.metrics.exposition import Page
from verl_core.control.metrics.figures import Scored, queue_families, scoring_families, told_queue
from verl_core.control.metrics.requests import Requests, Routes, request_families
from verl_core.control.page import add_page
from verl_core.control.problem import install_handlers
from verl_core.control.read_only import ReadOnly
from verl_core.control.routers.events import events_router
from verl_core.control.routers.health import health_router
from verl_core.control.routers.leases import leases_router
from verl_core.control.routers.metrics import PATH as METRICS
from verl_core.control.routers.metrics import metrics_router
from verl_core.control.routers.providers import providers_router
from verl_core.control.routers.runs import runs_router
from verl_core.control.routers.score import PATH, score_handler, score_router
from verl_core.control.routers.weights import weights_router
from verl_core.control.scoring.service import ScoreService
from verl_core.control.state import ControlState
from verl_reward_sdk.errors import PluginError

_RESERVED = (
    *("/api/v1/reward", "/healthz", "/readyz", "/livez", "/metrics"),
    *("/docs", "/openapi.json", "/ui"),
)


def create_app(state: ControlState, *, allowed_hosts: Collection[str] = ()) -> FastAPI:
    """The control plane of one run, as an ASGI app.

    Args:
        state: the run.
        allowed_hosts: names to answer to, beside those of `state`.

    Raises:
        PluginError: a plugin's route has a prefix that it cannot have.
    """
    _check_prefixes([*state.routes, *state.scorers])
    app = _App(
        title="verl-reward control plane",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    service = app.state.scoring = None if state.engine is None else ScoreService(state)
    if service is not None:
        app.add_middleware(
            Lane, path=PATH, handler=score_handler(service), told=app.exception_handlers
        )
    if state.read_only is not None:
        app.add_middleware(ReadOnly, reason=state.read_only, run_id=state.run_id)
    app.add_middleware(HeadAsGet, foreign=tuple(state.routes))
    hosts = (*state.allowed_hosts, *allowed_hosts)
    app.add_middleware(
        Guard,
        token=state.token,
        read_token=state.read_token,
        allowed_hosts=hosts,
        max_body=_body_limits(state),
        scoring=(PATH, *state.scorers),
        secrets=state.secrets,
    )
    install_handlers(app, state.run_id)
    # The guard has checked the token; this tells the OpenAPI document that there is one.
    told = [Depends(HTTPBearer(auto_error=False))] if state.token else []
    app.include_router(weights_router(state), dependencies=told)
    app.include_router(events_router(state), dependencies=told)
    app.include_router(leases_router(state), dependencies=told)
    app.include_router(providers_router(state), dependencies=told)
    app.include_router(score_router(service), dependencies=told)
    if service is not None:
        for make in state.scorers.values():
            app.include_router(make(service), dependencies=told)
    app.include_router(runs_router(state), dependencies=told)
    app.include_router(health_router(state))
    add_documents(app)
    add_page(app)
    for prefix, plugin in state.routes.items():
        app.mount(prefix, plugin)
    _observe(app, state, service, told)
    _describe_problems(app)
    return app


class _App(FastAPI):
    """Knows the paths of the routers that it has: its own list of routes may hold them or not,
    which differs between versions of FastAPI."""

    def __init__(self, **settings: Any) -> None:
        self.included: list[str] = []
        super().__init__(**settings)

    def include_router(self, router: APIRouter, **settings: Any) -> None:
        self.included += [route.path for route in router.routes if isinstance(route, Route)]
        super().include_router(router, **settings)


def _observe(
    app: _App, state: ControlState, service: ScoreService | None, told: Sequence[Any]
) -> None:
    """Count and log every request, what is scored, and what is changed; serve the figures."""
    own = [route.path for route in app.routes if isinstance(route, Route)]
    routes = Routes([*app.included, *own, METRICS], tuple(state.routes))
    mounts = {} if state.counted is None else state.counted.mounts
    gates = [name for name, mount in mounts.items() if mount.role == "gate"]
    families = [*request_families(routes), *queue_families()]
    families += scoring_families(list(mounts), gates)
    share = state.share
    board = Board(families, file=share.file, row=share.row, rows=share.rows)
    if state.counted is not None:
        Scored(board, state.counted)
    if service is not None:
        service.admission.changed = told_queue(board)

    def facts() -> dict[str, Any]:
        return {"run_id": state.run_id, "revision": state.store.snapshot().revision}

    app.add_middleware(Requests, routes=routes, board=board, facts=facts)
    app.include_router(metrics_router(Page(board, state)), dependencies=told)
    log_changes(state, state.counted)


def _body_limits(state: ControlState) -> Callable[[Scope], int | None]:
    """Bytes of a body by its path; a stream of rows has no end, only its lines have."""
    scoring = {PATH, *state.scorers}

    def limit(scope: Scope) -> int | None:
        if scope["path"] not in scoring:
            return state.max_body
        if scope["path"] == PATH and is_stream(scope):
            return None
        return state.scoring.body_bytes

    return limit


def _check_prefixes(prefixes: Iterable[str]) -> None:
    taken = list(_RESERVED)
    for prefix in prefixes:
        if not prefix.startswith("/") or prefix.endswith("/"):
            raise PluginError(
                f"a plugin's route has the prefix {prefix!r}",
                hint="it must begin with / and not end with it, as in /human",
            )
        for other in taken:
            if f"{prefix}/".startswith(f"{other}/") or f"{other}/".startswith(f"{prefix}/"):
                raise PluginError(
                    f"a plugin's route {prefix!r} would hide {other!r}, or be hidden by it",
                    hint="the plugin must choose another prefix",
                )
        taken.append(prefix)


def _describe_problems(app: FastAPI) -> None:
    """Put the problem document's schema, which no route returns as its model, into OpenAPI."""
    made = app.openapi

    def openapi() -> dict[str, object]:
        document = made()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "ProblemDocument" not in schemas:
            schema = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas["ProblemDocument"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
