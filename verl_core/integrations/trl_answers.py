"""From a scored table to what TRL takes: a float or None a row, metrics, and columns to log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from verl_core.integrations.trl_rules import Trainer
from verl_core.rewards.statuses import NONE, SKIP
from verl_core.rewards.table import MountColumn, RewardTable
from verl_reward_sdk.protocols import Bools, Floats


def fused(table: RewardTable) -> list[float | None]:
    """The fused reward, None where the row is masked, blocked or skipped."""
    return _listed(table.fused, trained(table))


def trained(table: RewardTable) -> Bools:
    """(B,) bool: rows that the policy may learn from."""
    live: Bools = ~(np.isnan(table.fused) | table.skip)
    return live


def column(
    table: RewardTable, mount: str, penalty: float | None, trainer: Trainer
) -> list[float | None]:
    """One mount's part of TRL's weighted sum, whose total is the fused reward.

    A row that may not be trained on is None in every mount's part. Beside that, a reward is None
    where it adds nothing.

    Args:
        penalty: of a gate; None for a reward.
    """
    part = table.columns[mount]
    live = trained(table)
    if penalty is None:
        return _listed(part.normalised, live & ~np.isnan(part.contribution))
    return _listed(_gate_part(part, penalty, trainer), live)


def _gate_part(part: MountColumn, penalty: float, trainer: Trainer) -> Floats:
    if trainer.normalizes_first:  # GDPO: a gate is one more reward of weight 1
        return np.where(part.words != NONE, penalty, 0.0)
    return np.nan_to_num(part.contribution, nan=0.0)


def _listed(values: Floats, there: Bools) -> list[float | None]:
    there = there & ~np.isnan(values)
    if there.all():
        return list(values.tolist())
    pairs = zip(values.tolist(), there.tolist(), strict=True)
    return [value if there_is else None for value, there_is in pairs]


def tell(
    table: RewardTable,
    log_metric: Callable[[str, float], None] | None,
    log_extra: Callable[[str, list[Any]], None] | None,
) -> None:
    """Hand the step's figures, and a column a mount, to TRL's own logs.

    Metrics are those of `RewardTable.metrics`. Columns of the completions table:
    ``score/<mount>``, the raw score (None where there is none), and ``reward_note``: why a row is
    masked or skipped.
    """
    if log_metric is not None:
        for name, value in table.metrics().items():
            log_metric(name, value)
    if log_extra is not None:
        for name, part in table.columns.items():
            log_extra(f"score/{name}", _listed(part.scores, ~np.isnan(part.scores)))
        skipped = (table.gate_words == SKIP).tolist()
        notes = zip(table.mask_reason, skipped, strict=True)
        log_extra("reward_note", [why or ("skipped" if skip else "") for why, skip in notes])
