"""From the rows of a request to a `RewardBatch`; what is wrong is told by its JSON pointer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from verl_core.control.problem import Problem
from verl_core.control.scoring.models import ScoreRequest, ScoreRow
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import did_you_mean

MAX_ERRORS = 20
_OPTIONAL = ("group", "trajectory", "response_ids", "response_mask")

Wrong = dict[str, Any]


def batch_of(
    rows: Sequence[ScoreRow], reads: Iterable[str], *, training: bool, first: int = 0
) -> RewardBatch:
    """The rows with the columns that mounts read; others are left behind.

    Args:
        reads: columns that every row must have.
        first: the first row's number, for its sample id.
    """
    columns = {name: [row.columns[name] for row in rows] for name in reads}
    raw: Sequence[str] = ()
    if any(row.response_raw is not None for row in rows):
        raw = [row.response if row.response_raw is None else row.response_raw for row in rows]
    has = {name: bool(rows) and getattr(rows[0], name) is not None for name in _OPTIONAL}
    return RewardBatch(
        sample_ids=[
            str(number) if row.sample_id is None else row.sample_id
            for number, row in enumerate(rows, first)
        ],
        prompts=[row.prompt for row in rows],
        responses=[row.response for row in rows],
        responses_raw=raw,
        finish_reason=[row.finish_reason for row in rows],
        trajectories=[row.trajectory or [] for row in rows] if has["trajectory"] else None,
        columns=columns,
        group_ids=[row.group for row in rows] if has["group"] else None,
        response_ids=_arrays(rows, "response_ids") if has["response_ids"] else None,
        response_mask=_arrays(rows, "response_mask") if has["response_mask"] else None,
        training=training,
    )


def _arrays(rows: Sequence[ScoreRow], name: str) -> list[Any]:
    return [np.array(getattr(row, name), dtype=np.int64) for row in rows]


def wrong_rows(
    rows: Sequence[ScoreRow], reads: Iterable[str], *, first: int = 0
) -> list[tuple[int, Wrong]]:
    """``(row, what is wrong)`` of rows that each may stand alone, but not together or for these
    mounts: a column is missing, an id stands twice, a field stands in some rows only."""
    found: list[tuple[int, Wrong]] = []
    needed = frozenset(reads)
    seen: dict[str, int] = {}
    has = {name: getattr(rows[0], name) is not None for name in _OPTIONAL} if rows else {}
    for number, row in enumerate(rows):
        if not needed <= row.columns.keys():
            names = sorted(needed - row.columns.keys())
            found.extend((number, _missing(name, row.columns)) for name in names)
        name = str(number + first) if row.sample_id is None else row.sample_id
        if seen.setdefault(name, number) != number:
            told = f"{name!r} is also the sample id of row {seen[name]}"
            found.append((number, {"at": "sample_id", "detail": told}))
        for field, there in has.items():
            if (getattr(row, field) is not None) is not there:
                which = "has it" if there else "has none"
                told = f"it must stand in all rows or in none, and the first {which}"
                found.append((number, {"at": field, "detail": told}))
        ids, mask = row.response_ids, row.response_mask
        if mask is not None and (ids is None or len(ids) != len(mask)):
            given = 0 if ids is None else len(ids)
            told = f"{len(mask)} marks for {given} response_ids"
            found.append((number, {"at": "response_mask", "detail": told}))
        if ids is not None and not all(-(2**63) <= one < 2**63 for one in ids):
            found.append((number, {"at": "response_ids", "detail": "a token id is beyond 64 bits"}))
        if len(found) >= MAX_ERRORS:
            break
    return found


def _missing(name: str, columns: Mapping[str, Any]) -> Wrong:
    nearest = did_you_mean(name, columns)
    told = f"there is no {name!r}, which a mount reads" + (f" ({nearest})" if nearest else "")
    return {"at": "columns", "detail": told}


def refuse(rows: Sequence[ScoreRow], reads: Iterable[str]) -> None:
    """Raise `Problem` (422) where `wrong_rows` finds something; nothing is scored then."""
    found = wrong_rows(rows, reads)
    if found:
        raise invalid(
            [
                {"pointer": f"#/rows/{row}/{one['at']}", "detail": one["detail"]}
                for row, one in found[:MAX_ERRORS]
            ]
        )


def invalid(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """422 with these errors; nothing was scored."""
    said = "; ".join(f"{e.get('pointer', e.get('parameter'))}: {e['detail']}" for e in errors[:3])
    more = len(errors) - 3
    said += f"; and {more} more" if more > 0 else ""
    return Problem(422, "invalid-request", f"{said}. Nothing was scored.", errors=errors)


def problem_of(error: ValidationError) -> Problem:
    """What pydantic found, as a problem: 400 where the body is no JSON, else 422 by pointers."""
    found = errors_of(error, ScoreRequest.model_fields)
    if found and found[0].get("json"):
        return Problem(
            400,
            "malformed-json",
            f"the body is not JSON: {found[0]['detail']}. Nothing was scored.",
        )
    return invalid(found)


def errors_of(error: ValidationError, members: Iterable[str]) -> list[Wrong]:
    """``{pointer, detail}`` of what pydantic found, at most `MAX_ERRORS`.

    Args:
        members: of the body itself.
    """
    found: list[Wrong] = []
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        if one["type"] == "json_invalid":
            told = str(one["msg"]).removeprefix("Invalid JSON: ")
            return [{"pointer": "#", "detail": told, "json": True}]
        pointer = _pointer(one["loc"])
        if any(other["pointer"] == pointer for other in found):
            continue
        wrong: Wrong = {"pointer": pointer, "detail": str(one["msg"])}
        if one["type"] == "extra_forbidden":
            known = ScoreRow.model_fields if "/rows/" in pointer else members
            wrong["detail"] = "no such member"
            nearest = did_you_mean(str(one["loc"][-1]), known)
            if nearest:
                wrong["detail"] += f" ({nearest})"
        found.append(wrong)
        if len(found) == MAX_ERRORS:
            break
    return found


#: What pydantic puts into a location where a value may be of several kinds: no part of the body.
_KINDS = frozenset({"str", "int", "constrained-str", "list[dict[str,any]]", "function-after"})


def _pointer(location: Sequence[int | str]) -> str:
    parts = [str(part) for part in location]
    kept = [
        part
        for number, part in enumerate(parts)
        if not (number and part in _KINDS and parts[number - 1] in ("prompt", "group"))
    ]
    return "#" + "".join("/" + p.replace("~", "~0").replace("/", "~1")[:100] for p in kept)
