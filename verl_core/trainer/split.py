"""Means over some rows of a scored batch: those of each data source, or the best of n responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_core.rewards import RewardTable

#: The data-set column that says where a row comes from, as in verl.
SOURCE = "data_source"

#: What rows are called that name no source, among rows that do.
NO_SOURCE = "none"

#: Where the figures of a source stand, behind ``reward/`` or ``eval/reward/``. No mount's figures
#: lie so deep, and no source can be taken for the best of n.
BY_SOURCE, BEST_OF = "by_source", "best_of"

Bools = NDArray[np.bool_]


class Means:
    """Sums over batches, so that a mean is over all their rows."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, prefix: str, table: RewardTable, rows: Bools) -> None:
        """Of these rows ``<prefix>/fused/mean`` and each mount's ``<prefix>/<mount>/mean``.

        Args:
            rows: (B,) bool. A blocked row, and one without the score, has no part in a mean.
        """
        for name, values in _scores(table).items():
            counted = values[rows & np.isfinite(values)]
            total, count = self._sums.get(f"{prefix}/{name}/mean", (0.0, 0))
            if len(counted):
                self._sums[f"{prefix}/{name}/mean"] = (
                    total + float(counted.sum()),
                    count + len(counted),
                )

    def figures(self) -> dict[str, float]:
        """Name -> mean; one over no row is left out."""
        return {name: total / count for name, (total, count) in self._sums.items()}


def of_sources(columns: Mapping[str, Sequence[Any]]) -> dict[str, Bools]:
    """Each data source with its rows, (B,) bool; nothing where the data have no such column. A row
    whose source is null is of the source `NO_SOURCE`."""
    found: dict[str, Bools] = {}
    values = columns.get(SOURCE, ())
    for row, value in enumerate(values):
        source = NO_SOURCE if value is None else str(value)
        found.setdefault(source, np.zeros(len(values), dtype=bool))[row] = True
    return found


def source_figures(table: RewardTable, columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """``reward/by_source/<source>/fused/mean`` of a step, and each mount's."""
    means = Means()
    for source, rows in of_sources(columns).items():
        means.add(f"reward/{BY_SOURCE}/{source}", table, rows)
    return means.figures()


def best_of(fused: NDArray[np.float64], n: int) -> Bools:
    """(B,) bool: of every n rows in a line the first with the highest fused reward; none where no
    row of them has one (NaN)."""
    best = np.zeros(len(fused), dtype=bool)
    if not len(fused):
        return best
    values = np.where(np.isfinite(fused), fused, -np.inf).reshape(-1, n)
    prompts = np.flatnonzero(np.isfinite(values).any(axis=1))
    best[prompts * n + values[prompts].argmax(axis=1)] = True
    return best


def _scores(table: RewardTable) -> dict[str, NDArray[np.float64]]:
    scores = {"fused": table.fused} | {name: c.scores for name, c in table.columns.items()}
    return {name: np.where(table.blocked, np.nan, values) for name, values in scores.items()}
