"""RewardTable: a scored batch, a column a mount."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_core.rewards.columns import MountColumn, TableColumns
from verl_core.rewards.explain import explain_row
from verl_core.rewards.metrics import table_metrics

__all__ = ["MountColumn", "RewardTable"]


@dataclass(frozen=True, eq=False)
class RewardTable(TableColumns):
    """B rows, scored and fused under one lease. Nothing in it changes.

    Its fields are those of `TableColumns`.
    """

    def explain(self, row: int) -> dict[str, Any]:
        """Every component of one row, as JSON-ready values (None for what is not there).

        ``{fused, additive, revision, generations, masked, blocked, reason, gate, mounts: {name:
        {role, raw, normalised, weight, contribution, status, reason, severity}}}``. A mount with a
        bound under ``constrained`` has its ``multiplier`` too: there the contribution is
        (weight + multiplier) * normalised.

        Raises:
            IndexError: there is no such row.
        """
        return explain_row(self, row)

    def metrics(self) -> dict[str, float]:
        """The batch's figures, all finite; a figure over no row is left out.

        ``reward/<mount>/mean|std`` over its scored rows, ``abstained|failed`` as shares of the
        rows it was asked, ``not_applicable`` of all rows, ``extras/<name>/mean|std``; for a gate
        ``penalty|veto|skip|rate``, shares of its scored rows; ``cache_hit_rate`` of a mount with
        ``cache:``, ``multiplier`` of a constrained one; ``generation`` of
        each; ``reward/fused/mean|std``;
        ``reward/masked|skipped|blocked``, shares of all rows; ``weights/<mount>``,
        ``weights/revision``; ``timing_s/reward/<mount>``. Blocked rows are in no mean.
        """
        return table_metrics(self)
