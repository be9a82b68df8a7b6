"""Cutting a step's rows into micro-batches that fit into memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from verl_core.trainer.packing.batch import TokenBatch


def plan_micro_batches(
    batch: TokenBatch,
    *,
    max_rows: int,
    max_tokens: int | None = None,
    shared_prefix: bool = True,
    rows: NDArray[np.int64] | None = None,
) -> list[NDArray[np.int64]]:
    """Row numbers of each micro-batch: every row of `rows` once, in an order that pads little.

    Sequences of like length stand together, and with `shared_prefix` the rows of a group do (a
    group with more than `max_rows` rows is cut). The plan depends on nothing but its arguments.

    Args:
        batch: a step's responses.
        max_rows: at most so many responses a micro-batch.
        max_tokens: at most so many model tokens (padding included) a micro-batch, where a single
            sequence allows it; None for no such bound.
        shared_prefix: the layout that will be used.
        rows: the rows to train on, each once; all where None.
    """
    if max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}; it must be at least 1")
    chosen = np.arange(len(batch)) if rows is None else np.asarray(rows, dtype=np.int64)
    sequences = _sequences(batch, chosen, max_rows, max_tokens, shared_prefix)
    sequences.sort(key=lambda sequence: -sequence[0])  # stable: ties stay in row order
    plan: list[NDArray[np.int64]] = []
    current: list[NDArray[np.int64]] = []
    count = width = 0
    for length, members in sequences:
        # Lengths descend, so the first sequence of a micro-batch sets its width.
        full = current and (
            count + len(members) > max_rows
            or (max_tokens is not None and width * (len(current) + 1) > max_tokens)
        )
        if full:
            plan.append(np.concatenate(current))
            current, count = [], 0
        if not current:
            width = length
        current.append(members)
        count += len(members)
    if current:
        plan.append(np.concatenate(current))
    return plan


def _sequences(
    batch: TokenBatch,
    rows: NDArray[np.int64],
    max_rows: int,
    max_tokens: int | None,
    shared_prefix: bool,
) -> list[tuple[int, NDArray[np.int64]]]:
    """``(length, rows)`` of each sequence that the layout will make."""
    read = np.maximum(batch.lengths - 1, 0)
    prompt = batch.prompt_lengths
    if not shared_prefix:
        return [(int(prompt[row] + read[row]), np.array([row])) for row in rows]
    members: dict[int, list[int]] = {}
    for row in rows.tolist():
        members.setdefault(int(batch.groups[row]), []).append(row)
    sequences = []
    for group in members.values():
        current: list[int] = []
        length = 0
        for row in group:
            longer = length + int(read[row])
            if current and (
                len(current) == max_rows or (max_tokens is not None and longer > max_tokens)
            ):
                sequences.append((length, np.array(current)))
                current = []
            length = int(prompt[row] + read[row]) if not current else longer
            current.append(row)
        sequences.append((length, np.array(current)))
    return sequences
