"""The figures of a TableColumns, under the names that logs use."""

from __future__ import annotations

import numpy as np

from verl_core.rewards.columns import MountColumn, TableColumns
from verl_core.rewards.group_statistics import MAX_SQUARED
from verl_core.rewards.statuses import (
    ABSTAINED,
    FAILED,
    NOT_APPLICABLE,
    OK,
    PENALTY,
    SKIP,
    VETO,
)
from verl_reward_sdk.protocols import Bools, Floats


def table_metrics(table: TableColumns) -> dict[str, float]:
    """As `RewardTable.metrics`."""
    figures: dict[str, float] = {}
    counted = ~table.blocked
    for name, column in table.columns.items():
        figures |= _mount(f"reward/{name}", column, counted)
        figures[f"timing_s/reward/{name}"] = column.seconds
        if column.hit_rate is not None:
            figures[f"reward/{name}/cache_hit_rate"] = column.hit_rate
    figures |= _spread("reward/fused", table.fused[~np.isnan(table.fused)])
    for name, rows in (
        ("masked", table.masked),
        ("skipped", table.skip),
        ("blocked", table.blocked),
    ):
        figures[f"reward/{name}"] = _share(int(np.count_nonzero(rows)), len(table))
    figures |= {f"weights/{name}": weight for name, weight in table.weights.items()}
    figures |= {
        f"reward/{name}/generation": float(number) for name, number in table.generations.items()
    }
    figures["weights/revision"] = float(table.revision)
    return {**figures, **table.figures}


def _mount(prefix: str, column: MountColumn, counted: Bools) -> dict[str, float]:
    counts = np.bincount(column.codes, minlength=4).tolist()
    asked = len(column.codes) - counts[NOT_APPLICABLE]
    ok = column.codes == OK
    figures = _spread(prefix, column.scores[ok & counted])
    figures |= {
        f"{prefix}/abstained": _share(counts[ABSTAINED], asked),
        f"{prefix}/failed": _share(counts[FAILED], asked),
        f"{prefix}/not_applicable": _share(counts[NOT_APPLICABLE], len(column.codes)),
    }
    if column.role == "gate":
        said = np.bincount(column.words, minlength=4).tolist()
        figures |= {
            f"{prefix}/penalty": _share(said[PENALTY], counts[OK]),
            f"{prefix}/veto": _share(said[VETO], counts[OK]),
            f"{prefix}/skip": _share(said[SKIP], counts[OK]),
            f"{prefix}/rate": _share(said[PENALTY] + said[VETO] + said[SKIP], counts[OK]),
        }
    for name, values in column.extras.items():
        figures |= _spread(f"{prefix}/extras/{name}", values[np.isfinite(values) & counted])
    return figures


def _spread(prefix: str, values: Floats) -> dict[str, float]:
    if not len(values):
        return {}
    unit = max(float(np.abs(values).max()) / MAX_SQUARED, 1.0)  # so that no square overflows
    scaled = values / unit if unit > 1.0 else values
    return {
        f"{prefix}/mean": float(scaled.mean()) * unit,
        f"{prefix}/std": float(scaled.std()) * unit,
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
