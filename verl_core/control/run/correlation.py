"""How the rewards of a run move together, and where one rises while another falls.

Both are read from the step means of a run, over a sliding window of W steps:

- the correlation of two rewards is Pearson's, of their step means;
- a reward *rises* (or falls) at a step where the slope of a straight line through its last W means
  lies at least `SURE` standard errors from 0, and the line explains at least `EXPLAINED` of their
  spread. Means of neighbouring steps are not independent, so this is a sign to look, no proof.

A mark stands where one reward rises while another falls, once for as long as it lasts. It is the
usual trace of a reward that is gamed at the cost of another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SURE = 3.0
EXPLAINED = 0.3
MOST_MOUNTS = 12
_FEWEST = 8
_MOST_POINTS = 200


@dataclass(frozen=True)
class Mark:
    """One reward rises while another falls.

    Args:
        step: the first at which both do.
        until: the last.
        rising, falling: names of the mounts.
        rise, fall: what their lines gain over the window, at `step`.
    """

    step: int
    until: int
    rising: str
    falling: str
    rise: float
    fall: float


@dataclass(frozen=True)
class Together:
    """How two rewards move together.

    Args:
        first, second: names of the mounts.
        values: one correlation a step of the answer, NaN where it is not known.
        latest: over the last window; NaN where it is not known.
    """

    first: str
    second: str
    values: Sequence[float]
    latest: float


def window_of(steps: int, wanted: int | None = None) -> int:
    """The window's length for a run of so many steps: a quarter of it, from 8 to 64."""
    if wanted is not None:
        return max(_FEWEST, wanted)
    return max(_FEWEST, min(64, steps // 4))


def correlations(
    means: Mapping[str, Sequence[float]], window: int
) -> tuple[list[int], list[Together]]:
    """The correlation of every pair of rewards over time.

    Args:
        means: mount -> (S,) step means, NaN where a step has none; `MOST_MOUNTS` are looked at.
        window: W.

    Returns:
        The numbers of the steps that are given, 200 at most, the last one among them; one
        `Together` a pair, the strongest first.
    """
    columns = _columns(means)
    count = max((len(values) for values in columns.values()), default=0)
    if count < _FEWEST:
        return [], []
    shown = sorted({round(i) for i in np.linspace(_FEWEST - 1, count - 1, _MOST_POINTS)})
    pairs = []
    for (first, a), (second, b) in itertools.combinations(columns.items(), 2):
        values = _rolling_correlation(a, b, window)[shown]
        pairs.append(Together(first, second, values.tolist(), float(values[-1])))
    pairs.sort(key=lambda pair: -abs(pair.latest) if math.isfinite(pair.latest) else 1.0)
    return shown, pairs


def opposed(means: Mapping[str, Sequence[float]], steps: Sequence[int], window: int) -> list[Mark]:
    """Where one reward rises while another falls, the earliest first."""
    columns = _columns(means)
    moves = {name: _moves(values, window) for name, values in columns.items()}
    marks = []
    for (rising, up), (falling, down) in itertools.permutations(moves.items(), 2):
        both = (up > 0) & (down < 0)  # NaN compares false
        for begin, end in _stretches(both):
            gained = {"rise": float(up[begin]), "fall": float(down[begin])}
            marks.append(Mark(steps[begin], steps[end], rising, falling, **gained))
    return sorted(marks, key=lambda mark: (mark.step, mark.rising, mark.falling))


def _columns(means: Mapping[str, Sequence[float]]) -> dict[str, Floats]:
    first = itertools.islice(means.items(), MOST_MOUNTS)
    return {name: np.asarray(values, dtype=np.float64) for name, values in first}


def _moves(values: Floats, window: int) -> Floats:
    """(S,) what the line through the last W means gains over them; 0 where that is no clear move,
    NaN where too few are known."""
    known, (x, y, xx, yy, xy) = _sums(np.arange(len(values), dtype=np.float64), values, window)
    with np.errstate(all="ignore"):
        spread_x, spread_y, both = xx - x * x / known, yy - y * y / known, xy - x * y / known
        slope = both / spread_x
        explained = both * both / (spread_x * spread_y)
        left = np.maximum(spread_y - slope * both, 0.0)
        error = np.sqrt(left / (known - 2) / spread_x)
        clear = (np.abs(slope) >= SURE * error) & (explained >= EXPLAINED)
        gain = np.where(clear, slope * (known - 1), 0.0)
    gain[known < _FEWEST] = np.nan
    return np.asarray(gain)


def _rolling_correlation(a: Floats, b: Floats, window: int) -> Floats:
    known, (x, y, xx, yy, xy) = _sums(a, b, window)
    with np.errstate(all="ignore"):
        spread_x, spread_y, both = xx - x * x / known, yy - y * y / known, xy - x * y / known
        found = both / np.sqrt(spread_x * spread_y)
    # Of figures that do not move only the rounding is left, and that correlates with anything.
    still = (spread_x <= 1e-12 * np.maximum(xx, 1e-30)) | (
        spread_y <= 1e-12 * np.maximum(yy, 1e-30)
    )
    found[still | (known < _FEWEST)] = np.nan
    return np.asarray(np.clip(found, -1.0, 1.0))


def _sums(x: Floats, y: Floats, window: int) -> tuple[Floats, tuple[Floats, ...]]:
    """Over the last W steps at which both are known: how many, and the sums of x, y, xx, yy, xy.

    Both are centred first: else a small movement far from 0 is lost in the squares.
    """
    both = np.isfinite(x) & np.isfinite(y)
    if not both.any():
        nothing = np.zeros(len(x))
        return nothing, (nothing,) * 5
    u = np.where(both, x - x[both].mean(), 0.0)
    v = np.where(both, y - y[both].mean(), 0.0)
    known, *sums = (_over(t, window) for t in (both.astype(np.float64), u, v, u * u, v * v, u * v))
    return known, tuple(sums)


def _over(values: Floats, window: int) -> Floats:
    """(S,) the sum of the last W values at each place."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    return np.asarray(total[ends] - total[np.maximum(ends - window, 0)])


def _stretches(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(first, last) of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]
