"""From the rows of a request to a `RewardBatch`; what is wrong is told by its JSON pointer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from verl_core.control.problem import Problem
from verl_core.control.scoring.models import ScoreRequest, ScoreRow
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import did_you_mean

MAX_ERRORS = 20

Wrong = dict[str, Any]
_OPTIONAL = {
    "group": "groups",
    "trajectory": "trajectories",
    "response_ids": "ids",
    "response_mask": "masks",
}


class Rows(NamedTuple):
    """The rows of a request, a column a field."""

    prompts: Sequence[str | list[dict[str, Any]]]
    responses: Sequence[str]
    columns: Sequence[dict[str, Any]]
    sample_ids: Sequence[str | None]
    groups: Sequence[str | int | None]
    finish_reasons: Sequence[str]
    raw: Sequence[str | None]
    trajectories: Sequence[list[dict[str, Any]] | None]
    ids: Sequence[list[int] | None]
    masks: Sequence[list[int] | None]

    @classmethod
    def of(cls, rows: Sequence[ScoreRow]) -> Rows:
        """Of the rows of a request."""
        # Out of the models' own dicts: an attribute at a time would take ten times as long.
        return cls(*zip(*map(_FIELDS, map(vars, rows)), strict=True)) if rows else cls(*[()] * 10)

    def __len__(self) -> int:
        return len(self.responses)


_FIELDS = itemgetter(*ScoreRow.model_fields)


def batch_of(rows: Rows, reads: Iterable[str], *, training: bool) -> RewardBatch:
    """The rows with the columns that mounts read; others are left behind.

    Args:
        rows: in which nothing is wrong.
        reads: columns that every row has.
    """
    ids: Sequence[Any] = rows.sample_ids
    if None in ids:
        ids = [str(i) if one is None else one for i, one in enumerate(ids)]
    raw: Sequence[Any] = ()
    if any(rows.raw):
        pairs = zip(rows.raw, rows.responses, strict=True)
        raw = [response if one is None else one for one, response in pairs]
    return RewardBatch(
        sample_ids=ids,
        prompts=rows.prompts,
        responses=rows.responses,
        responses_raw=raw,
        finish_reason=rows.finish_reasons,
        trajectories=_whole(rows.trajectories),
        columns={name: [values[name] for values in rows.columns] for name in reads},
        group_ids=_whole(rows.groups),
        response_ids=_arrays(rows.ids),
        response_mask=_arrays(rows.masks),
        training=training,
    )


def _whole(column: Sequence[Any]) -> Sequence[Any] | None:
    return column if column and column[0] is not None else None


def _arrays(column: Sequence[Any]) -> list[Any] | None:
    whole = _whole(column)
    return None if whole is None else [np.array(one, dtype=np.int64) for one in whole]


def wrong_rows(rows: Rows, reads: frozenset[str]) -> list[tuple[int, Wrong]]:
    """``(row, what is wrong)`` of rows that each may stand alone, but not together or for these
    mounts: a column is missing, an id stands twice, a field stands in some rows only."""
    found: list[tuple[int, Wrong]] = []
    if reads:
        for number, columns in enumerate(rows.columns):
            if not reads <= columns.keys():
                missing = sorted(reads - columns.keys())
                found.extend((number, _missing(name, columns)) for name in missing)
    n = len(rows)
    if rows.sample_ids.count(None) < n:
        found.extend(_twice(rows.sample_ids))
    for name, field in _OPTIONAL.items():
        column = getattr(rows, field)
        if 0 < column.count(None) < n:
            which = "has none" if column[0] is None else "has it"
            told = f"it must stand in all rows or in none, and the first {which}"
            found.extend(
                (number, {"at": name, "detail": told})
                for number, value in enumerate(column)
                if (value is None) is not (column[0] is None)
            )
    if rows.ids.count(None) < n or rows.masks.count(None) < n:
        found.extend(_wrong_tokens(rows))
    return sorted(found, key=lambda one: one[0])


def _twice(ids: Sequence[str | None]) -> Iterator[tuple[int, Wrong]]:
    seen: dict[str, int] = {}
    for number, given in enumerate(ids):
        name = str(number) if given is None else given
        if seen.setdefault(name, number) != number:
            told = f"{name!r} is also the sample id of row {seen[name]}"
            yield number, {"at": "sample_id", "detail": told}


def _wrong_tokens(rows: Rows) -> Iterator[tuple[int, Wrong]]:
    for number, (ids, mask) in enumerate(zip(rows.ids, rows.masks, strict=True)):
        if mask is not None and (ids is None or len(ids) != len(mask)):
            told = f"{len(mask)} marks for {0 if ids is None else len(ids)} response_ids"
            yield number, {"at": "response_mask", "detail": told}
        if ids is not None and not all(-(2**63) <= one < 2**63 for one in ids):
            yield number, {"at": "response_ids", "detail": "a token id is beyond 64 bits"}


def _missing(name: str, columns: Mapping[str, Any]) -> Wrong:
    nearest = did_you_mean(name, columns)
    told = f"there is no {name!r}, which a mount reads" + (f" ({nearest})" if nearest else "")
    return {"at": "columns", "detail": told}


def refuse(rows: Rows, reads: frozenset[str]) -> None:
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
