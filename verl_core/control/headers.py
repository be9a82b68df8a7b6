"""The request headers that the weights' routes read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

from starlette.requests import Request

from verl_core.control.problem import Problem, etag, unchanged
from verl_core.rewards.weight_rules import check_author, check_reason

AUTHOR = "X-Verl-Author"
REASON = "X-Verl-Reason"
DEFAULT_AUTHOR = "http"

T = TypeVar("T")
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_TAGS = re.compile(rf"[ \t,]*(?:{_TAG.pattern}[ \t]*(?:,[ \t,]*|$))*")
_REVISION = re.compile(r"[1-9][0-9]{0,17}")


def author_of(request: Request) -> str:
    """Who makes the change. Raises `Problem` (422)."""
    return _checked(AUTHOR, check_author, _text(request, AUTHOR) or DEFAULT_AUTHOR)


def reason_of(request: Request) -> str | None:
    """Why. Raises `Problem` (422)."""
    return _checked(REASON, check_reason, _text(request, REASON))


def _text(request: Request, name: str) -> str | None:
    """A header as text: UTF-8, percent-encoded or as it is (older clients: Latin-1)."""
    for key, value in request.scope["headers"]:
        if key == name.lower().encode():
            try:
                text = value.decode("utf-8")
            except UnicodeDecodeError:
                text = value.decode("latin-1")
            try:
                return unquote(text, errors="strict")
            except UnicodeDecodeError:
                raise _wrong(name, "what is percent-encoded in it is not UTF-8") from None
    return None


def _checked(name: str, check: Callable[[T], T], value: T) -> T:
    try:
        return check(value)
    except ValueError as error:
        raise _wrong(name, str(error)) from None


def _wrong(name: str, detail: str) -> Problem:
    errors = [{"parameter": name, "detail": detail}]
    return Problem(422, "invalid-request", unchanged(f"{name}: {detail}"), errors=errors)


def expected_revisions(request: Request) -> frozenset[int] | None:
    """The revisions that ``If-Match`` (RFC 9110, 13.1.1) lets a change replace; None: any.

    Tags are compared strongly: a weak one, and one that was never ours, matches nothing, so that
    the answer may be an empty set.

    Raises:
        Problem: 400, it is neither ``*`` nor a list of entity tags.
    """
    lines = request.headers.getlist("if-match")
    if not lines:
        return None
    header = ", ".join(lines).strip(" \t")
    if header == "*":
        return None
    if _TAGS.fullmatch(header) is None or not _TAG.search(header):
        detail = (
            f"If-Match is {header[:100]!r}; send the ETag of the last answer with its quotes, as in"
            ' If-Match: "7", a list of them, or * for any revision. Nothing was changed.'
        )
        errors = [{"parameter": "If-Match", "detail": "no list of entity tags"}]
        raise Problem(400, "invalid-request", detail, errors=errors)
    texts = [tag[2] for tag in _TAG.finditer(header) if not tag[1]]
    return frozenset(int(text) for text in texts if _REVISION.fullmatch(text))


def has_if_match(request: Request) -> bool:
    """Whether a request says which revision it may replace."""
    return "if-match" in request.headers


def no_if_match(newest: int) -> Problem:
    """428 (RFC 6585): there is no ``If-Match``, and it is required."""
    detail = (
        "If-Match is missing: who replaces all weights must say which revision that is. Read them,"
        f" look at them, and send their ETag (now If-Match: {etag(newest)})"
    )
    errors = [{"parameter": "If-Match", "detail": "it is required"}]
    tag = {"ETag": etag(newest)}
    return Problem(428, "if-match-required", unchanged(detail), errors=errors, headers=tag)
