"""What one cell of the reference column says: no reference, one, or several."""

from __future__ import annotations

import numpy as np


class UnusableReference(ValueError):
    """A cell that is neither a text nor a list of texts."""


def references_of(cell: object) -> tuple[str, ...]:
    """The references of one row, without those that are blank.

    Args:
        cell: a text, a list, tuple or array of texts, or None. Entries that are None or hold
            nothing but whitespace are left out: they say nothing about the answer.

    Returns:
        The references in their order; empty where the row has none.

    Raises:
        UnusableReference: the cell, or one entry of it, is of another type.
    """
    if cell is None:
        return ()
    if isinstance(cell, str):
        return (cell,) if cell.strip() else ()
    if not isinstance(cell, (list, tuple, np.ndarray)):
        raise UnusableReference(f"holds {_named(cell)}, expected a text or a list of texts")
    kept = []
    for position, entry in enumerate(cell):
        if entry is None:
            continue
        if not isinstance(entry, str):
            raise UnusableReference(f"holds {_named(entry)} at [{position}], expected a text")
        if entry.strip():
            kept.append(entry)
    return tuple(kept)


def _named(value: object) -> str:
    shown = repr(value)
    return f"{shown if len(shown) <= 40 else shown[:37] + '...'} ({type(value).__name__})"
