"""Mean and spread of a column within each group, for any number of rows and sizes of groups.

The values of a group are summed from the lowest to the highest, so that the order of the rows makes
no difference, to the last bit. Groups of one size are worked on together, as rows of a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from verl_reward_sdk.protocols import Bools, Floats

#: Squares of rewards are summed over a step (standard deviations): beyond this they overflow.
MAX_SQUARED = 1e100

Ints = npt.NDArray[np.int64]

Column = TypeVar("Column", Floats, Bools)

#: A standard deviation below it is none.
EPSILON = 1e-6


class Grouping:
    """Which rows belong together. Made once a step and used for all of its columns.

    Args:
        groups: (B,) int64, rows of one prompt share a number. Groups may differ in size and their
            rows stand anywhere.
    """

    def __init__(self, groups: npt.ArrayLike) -> None:
        numbers = np.asarray(groups, dtype=np.int64)
        self._order: Ints | None = None  # None: the rows lie in group order already
        if len(numbers) and not (numbers[1:] >= numbers[:-1]).all():
            self._order = np.argsort(numbers, kind="stable")
            numbers = numbers[self._order]
        begins = np.ones(len(numbers), dtype=bool)
        begins[1:] = numbers[1:] != numbers[:-1]
        self.index: Ints = np.cumsum(begins) - 1
        """(B,) int64 in group order: the row's group, numbered from 0."""
        self.sizes: Ints = np.diff(np.append(np.flatnonzero(begins), len(numbers)))
        """(G,) int64: rows a group."""
        self._size = _common(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def gather(self, column: Column) -> Column:
        """`column` (B,) in group order; not to be written to."""
        return column if self._order is None else column[self._order]

    def scatter(self, column: Column) -> Column:
        """`column` (B,) in group order, back in the order of the rows."""
        if self._order is None:
            return column
        out = np.empty_like(column)
        out[self._order] = column
        return out

    def spread_rows(self, of_groups: Column) -> Column:
        """(G,) -> (B,) in group order: each row gets its group's value."""
        return np.repeat(of_groups, self.sizes)

    def standardised(self, values: Floats, mean: Floats, std: Floats) -> Floats:
        """(B,) in group order: ``(values - mean) / std`` of the row's group, 0 where `std` is 0.

        Args:
            values: (B,) float64 in group order. What is not finite has no such answer.
            mean, std: (G,) float64.
        """
        scale = inverse(std)
        with np.errstate(invalid="ignore"):
            if self._size is not None:
                out = values.reshape(-1, self._size) - mean[:, None]
                out *= scale[:, None]
                return out.reshape(-1)
            out = values - self.spread_rows(mean)
            out *= self.spread_rows(scale)
        return out

    def counts(self, rows: Bools) -> Ints:
        """(G,) int64: how many of `rows`, (B,) bool in group order, each group has."""
        if rows.all():
            return self.sizes
        return np.bincount(self.index[rows], minlength=len(self))


@dataclass(frozen=True, eq=False)
class Moments:
    """What a group's values have in common.

    Args:
        count: (G,) int64, the values.
        mean: (G,) float64, 0 where there is none.
        squares: (G,) float64, the sum of squared deviations from the mean; exactly 0 where all
            values are the same.
    """

    count: Ints
    mean: Floats
    squares: Floats

    def std(self, count: Ints | None = None) -> Floats:
        """(G,) float64 unbiased standard deviations; 0 where they are below `EPSILON`.

        Args:
            count: (G,) in place of the count of values: with further ones that lie on the mean.
        """
        n = self.count if count is None else count
        std = np.sqrt(self.squares / np.maximum(n - 1, 1))
        return np.where((n < 2) | (std < EPSILON), 0.0, std)


def inverse(std: Floats) -> Floats:
    """``1 / std``, and 0 where it is 0: what a deviation is multiplied with."""
    return np.divide(1.0, std, out=np.zeros_like(std), where=std != 0.0)


def moments(values: Floats, sizes: Ints) -> Moments:
    """Count, mean and squared deviations of every group.

    Args:
        values: (n,) float64, finite, all those of the first group, then all of the second, ...
        sizes: (G,) int64, how many each has; 0 is allowed. They sum to n.
    """
    mean, squares = np.zeros(len(sizes)), np.zeros(len(sizes))
    starts = np.cumsum(sizes) - sizes
    common = _common(sizes)
    for size in np.unique(sizes[sizes > 0]).tolist() if common is None else [common]:
        if common is None:
            same = np.flatnonzero(sizes == size)
            block = values[starts[same][:, None] + np.arange(size)]
            block.sort(axis=1)
        else:
            same = np.arange(len(sizes))
            block = np.sort(values.reshape(-1, size), axis=1)
        centre = block.sum(axis=1) / size
        # A sum of equal values need not be a multiple of them to the last bit.
        centre = np.where(block[:, 0] == block[:, -1], block[:, 0], centre)
        block -= centre[:, None]
        mean[same] = centre
        squares[same] = np.einsum("ij,ij->i", block, block)
    return Moments(sizes, mean, squares)


def _common(sizes: Ints) -> int | None:
    """The size of all groups, or None where they differ, are empty, or there is none."""
    if not len(sizes) or sizes[0] == 0 or (sizes != sizes[0]).any():
        return None
    return int(sizes[0])
