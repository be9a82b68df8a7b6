"""A scored batch as the rows of an answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

from verl_core.rewards.columns import MountColumn
from verl_core.rewards.statuses import SEVERITY, STATUSES
from verl_core.rewards.table import RewardTable

_STATUSES = tuple(STATUSES.tolist())
_SEVERITIES = tuple(SEVERITY.tolist())


def rows_of(table: RewardTable, *, explain: bool) -> Iterator[dict[str, Any]]:
    """Each row as `ScoredRow` has it, in order."""
    components = [_components(column) for column in table.columns.values()]
    names = tuple(table.columns)
    masked, blocked = table.masked.tolist(), table.blocked.tolist()
    words = table.gate_words.tolist()
    each = zip(*components, strict=True) if components else iter([()] * len(table))
    for row, (sample, fused, parts) in enumerate(
        zip(table.sample_ids, table.fused.tolist(), each, strict=True)
    ):
        told: dict[str, Any] = {
            "sample_id": sample,
            "fused": fused if fused == fused else None,
            "status": "blocked" if blocked[row] else "masked" if masked[row] else "ok",
            "reason": table.mask_reason[row],
            "gate": _SEVERITIES[words[row]],
            "components": dict(zip(names, parts, strict=True)),
        }
        if explain:
            told["explain"] = table.explain(row)
        yield told


def _components(column: MountColumn) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"score": score if score == score else None, "status": _STATUSES[code]}
        for score, code in zip(column.scores.tolist(), column.codes.tolist(), strict=True)
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
            "rows": list(rows_of(table, explain=explain)),
        }
    )


def encoded(value: Any) -> bytes:
    """`value` in JSON with a line's end; pydantic's own writer, ten times as fast as Python's."""
    return to_json(value, inf_nan_mode="null") + b"\n"
