"""A request's body as strict JSON.

Python's reader takes ``NaN``, ``Infinity`` and ``1e999`` as floats; they are let through to the
store, which refuses them by name. What it hides, a key that is given twice, is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from verl_core.control.problem import Problem, key_error, unchanged

_LONGEST_INTEGER = 300  # digits; beyond 1.8e308 nothing is a weight


async def json_object(request: Request) -> dict[str, Any]:
    """The body of `request`, a JSON object. Its size is limited by the guard, as it is read.

    Raises:
        Problem: 415 it is not called JSON; 400 it is none; 422 it is no object, or has a key twice.
    """
    media_type_of(request, "application/json")
    text = _decoded(await request.body())
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_int=_integer)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(
            400, "malformed-json", f"the body is not JSON: {error.msg}, {where}"
        ) from error
    except RecursionError as error:
        raise Problem(400, "malformed-json", "the body is nested too deeply") from error
    if not isinstance(value, dict):
        raise Problem(422, "invalid-request", 'the body must be an object, such as {"accuracy": 2}')
    return value


def media_type_of(request: Request, *known: str) -> str:
    """Which of the `known` media types the body is of.

    Raises:
        Problem: 415 it is another, or compressed.
    """
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    media_type = media_type.strip().lower()
    if media_type not in known or charset not in ("", "charset=utf-8"):
        found = request.headers.get("content-type") or "nothing"
        raise Problem(
            415,
            "not-json",
            f"the Content-Type is {found[:100]!r}; send JSON as 'Content-Type: {known[0]}'",
            headers={"Accept-Post": ", ".join(known)},
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "not-json", "send the body as it is, without Content-Encoding")
    return media_type


def _decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem(400, "malformed-json", f"byte {error.start} is not UTF-8") from error


def _pairs(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = [name for name, _ in pairs if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        errors = [key_error(name, "it is given twice") for name in dict.fromkeys(twice)][:20]
        said = "; ".join(f"{error['key']}: {error['detail']}" for error in errors)
        raise Problem(422, "duplicate-key", unchanged(said), errors=errors)
    return found


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)
