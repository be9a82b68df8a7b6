"""How much of the time that rewards took passed unnoticed."""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[float, float]]


def hidden_and_exposed(busy: Iterable[tuple[float, float]], waited: Spans) -> tuple[float, float]:
    """Seconds in which something was busy and nobody waited, and seconds in which somebody did.

    Args:
        busy: (start, end) of every call, on one clock; they may overlap.
        waited: (start, end) of every wait, on the same clock.
    """
    exposed = _length(waited)
    return _length([*busy, *waited]) - exposed, exposed


def _length(spans: Iterable[tuple[float, float]]) -> float:
    """Of the union of `spans`."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
