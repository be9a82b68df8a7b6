"""The request headers that the weights' routes read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

from starlette.requests import Request

from verl_core.control.problem import Problem
from verl_core.rewards.weight_rules import check_author, check_reason

AUTHOR = "X-Verl-Author"
REASON = "X-Verl-Reason"
DEFAULT_AUTHOR = "http"

T = TypeVar("T")
_TAG = re.compile(r'\s*(?:W/)?"([^"]*)"\s*|\s*(\d+)\s*')


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
    return Problem(422, "invalid-request", f"{name}: {detail}. Nothing was changed.", errors=errors)


def expected_revision(request: Request, current: int) -> int | None:
    """The revision that ``If-Match`` asks for; None: any.

    Args:
        request: the request.
        current: the newest revision, which is picked where the header lists several.

    Raises:
        Problem: 400, it is no list of entity tags.
    """
    header = request.headers.get("if-match")
    if header is None or header.strip() == "*":
        return None
    revisions = [_revision(part) for part in header.split(",")]
    return current if current in revisions else revisions[0]


def _revision(part: str) -> int:
    found = _TAG.fullmatch(part)
    if found is None:
        detail = f'If-Match is {part.strip()[:100]!r}, no entity tag such as "7"'
        raise Problem(400, "invalid-request", detail)
    text = found[1] if found[1] is not None else found[2]
    # A weak tag, or one that is no number of ours, never equals a revision (RFC 9110, 13.1.1).
    is_ours = (
        text.isascii() and text.isdigit() and len(text) < 19 and not part.strip().startswith("W/")
    )
    return int(text) if is_ours else -1
