"""One row of a TableColumns, taken apart."""

from __future__ import annotations

import math
from typing import Any

from verl_core.rewards.columns import MountColumn, TableColumns
from verl_core.rewards.statuses import SEVERITY


def explain_row(table: TableColumns, row: int) -> dict[str, Any]:
    """As `RewardTable.explain`."""
    if not -len(table) <= row < len(table):
        raise IndexError(f"row {row} of a table of {len(table)} rows")
    row %= len(table)
    return {
        "fused": _number(table.fused[row]),
        "additive": table.additive,
        "revision": table.revision,
        "generations": dict(table.generations),
        "masked": table.mask_reason[row] if table.masked[row] else None,
        "blocked": bool(table.blocked[row]),
        "reason": table.mask_reason[row],
        "gate": str(SEVERITY[table.gate_words[row]]),
        "mounts": {
            name: _component(column, row) | _multiplier(table, name)
            for name, column in table.columns.items()
        },
    }


def _multiplier(table: TableColumns, mount: str) -> dict[str, float]:
    """What a policy such as `constrained` adds to the mount's weight; nothing elsewhere."""
    found = table.figures.get(f"reward/{mount}/multiplier")
    return {} if found is None else {"multiplier": float(found)}


def _component(column: MountColumn, row: int) -> dict[str, Any]:
    return {
        "role": column.role,
        "raw": _number(column.scores[row]),
        "normalised": _number(column.normalised[row]),
        "weight": _number(column.weight),
        "contribution": _number(column.contribution[row]),
        "status": str(column.status[row]),
        "reason": column.notes.get(row),
        "severity": str(SEVERITY[column.words[row]]),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
