"""The answers' forms, for the OpenAPI document, and how values become JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

Setting = float | dict[str, Any]


class Weights(BaseModel):
    """The weights of a run."""

    run_id: str = Field(description="The run whose weights these are.")
    revision: int = Field(description="Grows with every change, over restarts too; the ETag.")
    step: int = Field(description="The step whose scheduled values `weights` shows.")
    weights: dict[str, float] = Field(description="Mount -> weight at `step`.")
    pinned: list[str] = Field(description="Mounts that were changed live.")
    schedules: dict[str, dict[str, Any]] = Field(
        description="Mount -> the schedule of its config, also where a pin stands over it."
    )
    effective_step: int = Field(description="The first step that uses this revision.")


class Change(BaseModel):
    """One revision, as the audit log keeps it."""

    revision: int
    run_id: str
    time: str = Field(description="UTC, ISO 8601.")
    author: str
    reason: str | None
    before: dict[str, Setting] = Field(description="Mount -> number, or schedule in force.")
    after: dict[str, Setting]
    pinned: list[str]
    weights: dict[str, float] = Field(description="The numbers at `effective_step`.")
    effective_step: int


class History(BaseModel):
    """The audit log."""

    run_id: str
    revision: int = Field(description="The newest revision of this run.")
    history: list[Change] = Field(description="Newest first.")


class Providers(BaseModel):
    """The mounts and what runs in them."""

    run_id: str
    revision: int
    providers: list[dict[str, Any]] = Field(description="One a mount; null: without bound.")


class Reloaded(BaseModel):
    """What became of a reload."""

    run_id: str
    name: str = Field(description="The mount.")
    outcome: Literal["unchanged", "swapped", "restarted"]
    detail: str = Field(description="What changed, or why nothing did.")
    provider: dict[str, Any] = Field(description="The mount, as in the list of all.")


class Health(BaseModel):
    """Whether the run lives, and may be asked for scores."""

    live: bool
    ready: bool
    run_id: str | None = None
    step: int | None = None
    version: str | None = None


class Wrong(BaseModel):
    """One wrong part of a request."""

    pointer: str | None = Field(None, description="JSON pointer into the body.")
    key: str | None = None
    parameter: str | None = Field(None, description="Header or query parameter.")
    detail: str
    nearest: str | None = Field(None, description="The known name that was likely meant.")


class ProblemDocument(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[Wrong] | None = None
    run_id: str | None = None


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI ``responses`` for answers that are problem documents."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    content = {"application/problem+json": {"schema": schema}}
    return {
        status: {"description": _SAID[status], "content": content}
        for status in (*statuses, 401, 421)
    }


_SAID = {
    400: "The body is not JSON, or If-Match is no list of entity tags.",
    401: "The token is missing or wrong.",
    404: "There is no mount of that name; the nearest is told.",
    409: "The new generation is refused; the old one serves on.",
    412: "If-Match names another revision; ETag is the newest.",
    413: "The body is too large.",
    415: "The body is not called JSON.",
    421: "The Host header names another server.",
    422: "Refused, with a reason for each wrong part. Nothing was changed.",
    503: "Another program holds the weights' file; Retry-After. Nothing was changed.",
}


def answer(content: Mapping[str, Any], *, etag: str | None = None) -> Response:
    """`content` as a JSON answer that no cache keeps."""
    headers = {"Cache-Control": "no-store"} | ({"ETag": etag} if etag else {})
    body = json.dumps(_plain(content), ensure_ascii=False, allow_nan=False) + "\n"
    return Response(body.encode(), headers=headers, media_type="application/json")


def _plain(value: Any) -> Any:
    """`value` in JSON's own types; an infinity or NaN is null, an unknown type its text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case AbstractSet():
            return sorted(map(str, value))
    return str(value)
