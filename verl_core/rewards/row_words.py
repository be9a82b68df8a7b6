"""Rows of a step in words, for messages that speak of some of them."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 6
"""So many rows that are no run of neighbours are named; the others are counted."""


def failed_rows(failed: Sequence[int], asked: int, rows: Sequence[int] | None) -> str:
    """``4 of 8 rows failed``; of a call about some of the batch's rows ``rows 4 to 7 failed``, by
    the numbers that reasons name.

    Args:
        failed: which of the rows that were asked, ascending, at least one.
        asked: how many were.
        rows: their numbers in the whole batch; None where they are all of it.
    """
    if rows is None:
        return f"{len(failed)} of {asked} rows failed"
    numbers = [int(rows[place]) for place in failed]
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"row {first} failed"
    if last - first + 1 == len(numbers):
        return f"rows {first} to {last} failed"
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"rows {', '.join(map(str, numbers[:_NAMED]))}{more} failed"
