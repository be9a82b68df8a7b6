"""``POST /api/v1/reward/score``: rows in, components and the fused reward out."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from verl_core.control.answers import problems
from verl_core.control.body import media_type_of
from verl_core.control.lane import Handler
from verl_core.control.media import NDJSON
from verl_core.control.metrics.requests import note
from verl_core.control.problem import Problem
from verl_core.control.scoring.answer import answer_of
from verl_core.control.scoring.batch import Rows, problem_of, refuse
from verl_core.control.scoring.models import Scored, ScoreRequest, ScoreRow
from verl_core.control.scoring.service import ScoreService
from verl_core.control.scoring.stream import answer_stream, options_of

PATH = "/api/v1/reward/score"
_SMALL = 256 << 10  # a body that is read before there is a place for it
_HEADERS = {"Cache-Control": "no-store"}


def score_handler(service: ScoreService) -> Handler:
    """What answers the route's requests."""

    async def handler(request: Request) -> Response:
        kind = media_type_of(request, "application/json", NDJSON)
        service.check_ready()
        if kind == NDJSON:
            return await answer_stream(service, request)
        return await _answer(service, request)

    return handler


def score_router(service: ScoreService | None) -> APIRouter:
    """The route; without a service it answers 404."""
    router = APIRouter(tags=["score"])
    handler = None if service is None else score_handler(service)

    @router.post(
        PATH,
        response_model=Scored,
        responses=problems(400, 404, 409, 410, 413, 415, 422, 429, 503, 504),
        openapi_extra=_document(),
    )
    async def post_score(request: Request) -> Response:
        """Score rows under one lease.

        As `application/json`: all rows are one batch; a wrong row refuses all of them, by its JSON
        pointer. As `application/x-ndjson`: a row a line, of any number, scored in slices while they
        come, answered in order, a line each; a wrong line is answered by an `error` in its place.
        Read the answer while you send.
        """
        if handler is None:
            raise Problem(404, "nothing-to-score-with", "this server has no rewards to score with")
        return await handler(request)

    return router


async def _answer(service: ScoreService, request: Request) -> Response:
    length = request.headers.get("content-length", "")
    size = int(length) if length.isdigit() else service.limits.body_bytes
    # A small body is read first, so that a slow client holds no place; a large one finds its
    # memory set aside.
    early = await request.body() if size <= _SMALL else None
    with service.admission.enter(size) as place:
        body = await request.body() if early is None else early
        try:
            asked = ScoreRequest.model_validate_json(body)
        except ValidationError as error:
            raise problem_of(error) from error
        rows = Rows.of(asked.rows)
        refuse(rows, service.reads)
        place.take(len(rows))
        named = asked.lease is not None or asked.group is not None
        lease = await service.lease(asked) if named else None
        note(request.scope, rows=len(rows), **({"revision": lease.revision} if lease else {}))
        content = await service.score(
            rows,
            lease,
            training=asked.training,
            size=len(body),
            timeout=asked.timeout,
            receive=request.receive,
            then=lambda part: answer_of(part, rows, service.state.run_id, explain=asked.explain),
        )
    return Response(content, headers=_HEADERS, media_type="application/json")


def _document() -> dict[str, Any]:
    """The request's forms, for the OpenAPI document."""
    template = "#/components/schemas/{model}"
    schema = ScoreRequest.model_json_schema(ref_template=template)
    schema.pop("$defs", None)
    row = ScoreRow.model_json_schema(ref_template=template)
    schema["properties"]["rows"]["items"] = row
    example = {
        "rows": [{"prompt": "2 + 2?", "response": "4", "columns": {"ground_truth": "4"}}],
    }
    query = [
        {"name": name, "in": "query", "required": False, "schema": kind, "description": said}
        for name, kind, said in options_of()
    ]
    return {
        "parameters": query,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": schema, "example": example},
                NDJSON: {"schema": {"type": "string"}, "example": '{"response": "4"}\n'},
            },
        },
    }
