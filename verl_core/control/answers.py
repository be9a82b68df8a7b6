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


class LeaseAnswer(BaseModel):
    """A lease on a group."""

    id: str = Field(description="Names the lease; the same for all who ask for the group.")
    run_id: str
    group: str
    revision: int = Field(description="Of the weights; for good.")
    weights: dict[str, float] = Field(description="Mount -> weight at `step`.")
    generations: dict[str, int] = Field(description="Mount -> generation of its provider.")
    step: int = Field(description="The step whose scheduled values `weights` shows.")
    expires_in: float = Field(description="Seconds without use after which it ends.")


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


class Probe(BaseModel):
    """What a probe asks; its status says the same."""

    ok: bool


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
        for status in (*statuses, 401, 403, 421)
    }


_SAID = {
    400: "The body is not JSON, or If-Match is no list of entity tags.",
    401: "The token is missing or wrong.",
    403: "The read token was shown, and this asks for the other.",
    404: "There is none of that name (the nearest is told), or nothing to score with.",
    409: "The control plane is another run's, that run does not score for others now, or a new"
    " generation is refused and the old one serves on.",
    410: "The lease has ended.",
    412: "If-Match names another revision; ETag is the newest.",
    413: "The body is too large.",
    415: "The body is not called JSON.",
    421: "The Host header names another server.",
    422: "Refused, with a reason for each wrong part. Nothing was changed.",
    428: "If-Match is missing: it must say which revision is replaced.",
    429: "Too much is under way, or too many are open; Retry-After.",
    503: "Another program holds the weights' file, or no reward can be had now; Retry-After. "
    "Nothing was changed.",
    504: "The deadline has passed.",
}


def answer(content: Mapping[str, Any], *, etag: str | None = None, status: int = 200) -> Response:
    """`content` as a JSON answer that no cache keeps."""
    headers = {"Cache-Control": "no-store"} | ({"ETag": etag} if etag else {})
    body = json_text(content) + "\n"
    return Response(body.encode(), status, headers=headers, media_type="application/json")


def json_text(content: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """`content` as JSON, in one line."""
    return json.dumps(_plain(content), ensure_ascii=ascii_only, allow_nan=False)


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
