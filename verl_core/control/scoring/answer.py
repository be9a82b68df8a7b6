"""A scored batch as the rows of an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from verl_core.rewards.columns import MountColumn
from verl_core.rewards.statuses import SEVERITY, STATUSES
from verl_core.rewards.table import RewardTable

_STATUSES = tuple(STATUSES.tolist())
_SEVERITIES = tuple(SEVERITY.tolist())


def rows_of(table: RewardTable, *, explain: bool) -> list[dict[str, Any]]:
    """Each row as `ScoredRow` has it, in order; NaN where there is no number, for `encoded`."""
    n = len(table)
    names = tuple(table.columns)
    columns = [_components(column) for column in table.columns.values()]
    components = [dict(zip(names, parts)) for parts in zip(*columns)] if names else [{}] * n  # noqa: B905  (the columns of one table)
    dead = table.masked | table.blocked
    statuses: Sequence[str] = ("ok",) * n
    if dead.any():
        statuses = np.where(table.blocked, "blocked", np.where(dead, "masked", "ok")).tolist()
    words = table.gate_words.tolist()
    found = [
        {
            "sample_id": sample,
            "fused": fused,
            "status": status,
            "reason": reason,
            "gate": _SEVERITIES[word],
            "components": parts,
        }
        for sample, fused, status, reason, word, parts in zip(
            table.sample_ids,
            table.fused.tolist(),
            statuses,
            table.mask_reason,
            words,
            components,
            strict=True,
        )
    ]
    if explain:
        for row, told in enumerate(found):
            told["explain"] = table.explain(row)
    return found


def _components(column: MountColumn) -> list[dict[str, Any]]:
    scores = column.scores.tolist()
    found: list[dict[str, Any]]
    if not column.codes.any():
        found = [{"score": score, "status": "ok"} for score in scores]
    else:
        found = [
            {"score": score, "status": _STATUSES[code]}
            for score, code in zip(scores, column.codes.tolist(), strict=True)
        ]
    for row, note in column.notes.items():
        found[row]["reason"] = note
    if column.role == "gate":
        for one, word in zip(found, column.words.tolist(), strict=True):
            one["severity"] = _SEVERITIES[word]
    return found


def answer_of(table: RewardTable, run_id: str, *, explain: bool) -> bytes:
    """The whole answer, as `Scored` has it, in JSON."""
    return encoded(
        {
            "run_id": run_id,
            "revision": table.revision,
            "generations": dict(table.generations),
            "weights": {name: w for name, w in table.weights.items() if math.isfinite(w)},
            "additive": table.additive,
            "rows": rows_of(table, explain=explain),
        }
    )


def encoded(value: Any) -> bytes:
    """`value` in JSON with a line's end; NaN and infinity are null.

    orjson: of an answer's time Python's own writer would take the half, pydantic's a quarter.
    """
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
