"""A scored batch as the rows of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from verl_core.control.scoring.batch import Rows
from verl_core.control.scoring.joined import Part
from verl_core.rewards.columns import MountColumn
from verl_core.rewards.statuses import SEVERITY, STATUSES

_STATUSES = tuple(STATUSES.tolist())
_SEVERITIES = tuple(SEVERITY.tolist())


def rows_of(part: Part, sample_ids: Sequence[str], *, explain: bool) -> list[dict[str, Any]]:
    """Each row as `ScoredRow` has it, in order; NaN where there is no number, for `encoded`.

    Args:
        sample_ids: of the part's rows.
    """
    table, start, stop = part
    rows = slice(start, stop)
    names = tuple(table.columns)
    columns = [_components(column, start, stop) for column in table.columns.values()]
    components = [dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)]
    masked, blocked = table.masked[rows], table.blocked[rows]
    statuses: Sequence[str] = ("ok",) * (stop - start)
    if masked.any() or blocked.any():
        statuses = np.where(blocked, "blocked", np.where(masked, "masked", "ok")).tolist()
    words = table.gate_words[rows]
    found = [
        {
            "sample_id": sample,
            "fused": fused,
            "status": status,
            "reason": reason,
            "gate": word,
            "components": each,
        }
        for sample, fused, status, reason, word, each in zip(
            sample_ids,
            table.fused[rows].tolist(),
            statuses,
            table.mask_reason[rows],
            [_SEVERITIES[word] for word in words.tolist()],
            components,
            strict=True,
        )
    ]
    if explain:
        for row, told in enumerate(found, start):
            told["explain"] = table.explain(row)
    return found


def _components(column: MountColumn, start: int, stop: int) -> list[dict[str, Any]]:
    rows = slice(start, stop)
    scores, codes = column.scores[rows].tolist(), column.codes[rows]
    found: list[dict[str, Any]]
    if not codes.any():
        found = [{"score": score, "status": "ok"} for score in scores]
    else:
        statuses = [_STATUSES[code] for code in codes.tolist()]
        found = [
            {"score": score, "status": status}
            for score, status in zip(scores, statuses, strict=True)
        ]
    for row, note in column.notes.items():
        if start <= row < stop:
            found[row - start]["reason"] = note
    if column.role == "gate":
        for one, word in zip(found, column.words[rows].tolist(), strict=True):
            one["severity"] = _SEVERITIES[word]
    return found


def answer_of(part: Part, rows: Rows, run_id: str, *, explain: bool) -> bytes:
    """The whole answer, as `Scored` has it, in JSON.

    Args:
        rows: the request's own.
    """
    table = part.table
    ids = [str(i) if name is None else name for i, name in enumerate(rows.sample_ids)]
    return encoded(
        {
            "run_id": run_id,
            "revision": table.revision,
            "generations": dict(table.generations),
            "weights": dict(table.weights),
            "additive": table.additive,
            "rows": rows_of(part, ids, explain=explain),
        }
    )


def encoded(value: Any) -> bytes:
    """`value` in JSON with a line's end; NaN and infinity are null.

    orjson: of an answer's time Python's own writer would take the half, pydantic's a quarter.
    """
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
