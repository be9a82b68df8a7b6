"""Errors as RFC 9457 problem documents (``application/problem+json``), and nothing else."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from verl_core.rewards.lease_book import (
    LeaseBehind,
    LeaseEnded,
    NoLease,
    OtherRun,
    TooManyLeases,
)
from verl_core.rewards.persistence import StoreBusy, StoreError
from verl_core.rewards.weights import StaleRevision, WeightError

logger = logging.getLogger(__name__)

_TYPE = "urn:verl-reward:problem:"
_LONGEST_NAME = 100
_RETRY_SECONDS = "5"
_KINDS = {404: "not-found", 405: "method-not-allowed", 413: "body-too-large"}


class Problem(Exception):
    """An answer other than success.

    Args:
        status: the HTTP status.
        kind: a short name that never changes; the last part of the document's ``type``.
        detail: what was found and what to do next.
        errors: one ``{pointer, detail, …}`` for each wrong part of the request.
        headers: further headers of the answer.
        extra: further members of the document.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})
        self.extra = extra

    def document(self, **members: Any) -> dict[str, Any]:
        """What the answer says, with `members` added to it."""
        return {
            "type": _TYPE + self.kind,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **({"errors": self.errors} if self.errors else {}),
            **self.extra,
            **members,
        }

    def response(self, **members: Any) -> Response:
        """The HTTP answer; `members` are added to the document."""
        document = self.document(**members)
        # backslashreplace: a lone surrogate, which JSON strings can bring in, has no UTF-8 form;
        # the \udXXX that it becomes is its JSON form.
        body = (json.dumps(document, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        return Response(
            body,
            self.status,
            headers={"Cache-Control": "no-store", **self.headers},
            media_type="application/problem+json",
        )


def key_error(key: str, detail: str, **members: Any) -> dict[str, Any]:
    """One entry of ``errors`` for a key of the body; the key ``""`` is the body as a whole."""
    shown = key if len(key) <= _LONGEST_NAME else key[:_LONGEST_NAME] + "…"
    escaped = shown.replace("~", "~0").replace("/", "~1")
    pointer = "#/" + quote(escaped, errors="replace") if key else "#"
    return {"pointer": pointer, "key": shown, "detail": detail, **members}


def refused_weights(error: WeightError) -> Problem:
    """422: a change of weights that the store refused."""
    errors = [
        key_error(key, reason, **_nearest(error.nearest.get(key)))
        for key, reason in error.reasons.items()
    ]
    said = "; ".join(f"{e['key']}: {e['detail']}" if e["key"] else e["detail"] for e in errors)
    return Problem(422, "invalid-weights", unchanged(said), errors=errors)


def unchanged(reason: str) -> str:
    """The detail of a refusal: `reason`, and that nothing was changed."""
    stop = "" if reason.endswith((".", "?", "!")) else "."
    return f"{reason}{stop} Nothing was changed."


def _nearest(name: str | None) -> dict[str, str]:
    return {"nearest": name} if name else {}


def etag(revision: int) -> str:
    """A revision as an entity tag."""
    return f'"{revision}"'


def install_handlers(app: FastAPI, run_id: str) -> None:
    """Answer every error of `app` with a problem document that carries `run_id`."""

    def answer(kind: type[Exception], found: Callable[[Request, Any], Problem]) -> None:
        async def handler(request: Request, error: Exception) -> Response:
            return found(request, error).response(run_id=run_id)

        app.add_exception_handler(kind, handler)

    answer(Problem, lambda _, error: error)
    answer(WeightError, lambda _, error: refused_weights(error))
    answer(StaleRevision, lambda _, error: _stale(error))
    answer(StoreError, lambda _, error: _store_failed(error))
    answer(StoreBusy, lambda _, error: _store_busy(error))
    answer(LeaseEnded, lambda _, error: Problem(410, "lease-ended", f"{error}; take a new one."))
    answer(LeaseBehind, lambda _, error: _behind(error))
    answer(NoLease, lambda _, error: Problem(404, "not-found", f"{error}; POST …/leases gives one"))
    answer(OtherRun, lambda _, error: Problem(409, "other-run", unchanged(str(error))))
    answer(TooManyLeases, lambda _, error: _no_room(error))
    answer(RequestValidationError, lambda _, error: _invalid(error))
    answer(HTTPException, _http)
    answer(ClientDisconnect, lambda *_: Problem(400, "incomplete-body", "the client left"))


def _stale(error: StaleRevision) -> Problem:
    return Problem(
        412,
        "stale-revision",
        f"{error}. Nothing was changed: read the weights again, then decide.",
        headers={"ETag": etag(error.current)},
        revision=error.current,
    )


def _store_failed(error: StoreError) -> Problem:
    logger.error("%s", error)
    return Problem(500, "store-failed", str(error))


def _store_busy(error: StoreBusy) -> Problem:
    return Problem(503, "store-busy", str(error), headers={"Retry-After": _RETRY_SECONDS})


def _behind(error: LeaseBehind) -> Problem:
    return Problem(
        503, "lease-behind", f"{error}. Nothing was scored.", headers={"Retry-After": "1"}
    )


def _no_room(error: TooManyLeases) -> Problem:
    return Problem(429, "too-many-leases", str(error), headers={"Retry-After": _RETRY_SECONDS})


def _invalid(error: RequestValidationError) -> Problem:
    errors = [
        {"parameter": str(found["loc"][-1]), "detail": str(found["msg"])}
        for found in error.errors()
    ]
    said = "; ".join(f"{e['parameter']}: {e['detail']}" for e in errors)
    return Problem(422, "invalid-request", said, errors=errors)


def _http(request: Request, error: HTTPException) -> Problem:
    detail = str(error.detail)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path}; /docs lists what there is"
    if error.status_code == 405:
        detail = f"{request.method} is not what {request.url.path} takes"
        known = request.app.openapi()["paths"].get(request.url.path)
        if known:  # Starlette names the first route's methods only
            methods = {method.upper() for method in known} | ({"HEAD"} if "get" in known else set())
            headers["Allow"] = ", ".join(sorted(methods))
    kind = _KINDS.get(error.status_code, "http")
    return Problem(error.status_code, kind, detail, headers=headers)
