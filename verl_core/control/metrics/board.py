"""Numbers that several processes count into and any of them can add up.

A worker has a row of its own in one shared file, and a series (a metric with its labels) the same
place in every row. What a worker counted stays when it is killed, and the one that takes its place
goes on from there: a counter never falls, and a sum needs no other process to answer.

prometheus_client has a multiprocess mode too. It is not used: it is switched on by a variable of
the environment that must stand before the first import, so that the metrics of plugins (vLLM, Ray)
and of their child processes would come into our files and our page; it knows no info metrics and
leaves gauges of dead workers behind. Its text formats are used (`exposition`).
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

#: Seconds: from a check of a few rows to a judge's deadline.
BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
_HEADER = 1  # of a row: which layout it has
_DOUBLE = 8
_STRIDE = 1 << 17  # numbers from one worker's row to the next's


@dataclass(frozen=True)
class Family:
    """A metric and every series it can ever have.

    Args:
        kind: a gauge is set by its worker; the others only grow.
        name: without ``_total``.
        help: one sentence.
        labels: their names.
        series: the values of the labels, of each series.
        of_worker: a gauge that is told for each worker apart; others are added up.
        shows_zero: series that were never counted are told too.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    series: tuple[tuple[str, ...], ...] = ((),)
    of_worker: bool = False
    shows_zero: bool = True

    @property
    def width(self) -> int:
        """Numbers that one series takes: a histogram's are its buckets, the last without a bound,
        and its sum."""
        return len(BUCKETS) + 2 if self.kind == "histogram" else 1


class Board:
    """Where the numbers of these families lie.

    Args:
        families: the same in every worker.
        file: a descriptor that all workers have; None: the numbers are this process's alone.
        row: of this worker, from 0.
        rows: how many workers there are.
    """

    def __init__(
        self, families: Sequence[Family], *, file: int | None = None, row: int = 0, rows: int = 1
    ) -> None:
        self.families = tuple(families)
        self._at: dict[tuple[str, tuple[str, ...]], int] = {}
        size = _HEADER
        for family in self.families:
            for values in family.series:
                self._at[family.name, values] = size
                size += family.width
        # Of a file's rows each begins where it begins for a worker with another layout too; what
        # lies between them is never written, and takes no room.
        stride = size if file is None else max(_STRIDE, 1 << size.bit_length())
        self._size = size
        self._lock = threading.Lock()
        numbers = self._open(file, _DOUBLE * rows * stride)
        self._all: npt.NDArray[np.float64] = np.frombuffer(numbers).reshape(rows, stride)[:, :size]
        self._mine = memoryview(numbers).cast("B").cast("d")[row * stride : row * stride + size]
        self._begin()

    def _open(self, file: int | None, length: int) -> mmap.mmap | array[float]:
        if file is None:
            return array("d", bytes(length))
        if os.fstat(file).st_size < length:  # others do the same, to the same length
            os.ftruncate(file, length)
        return mmap.mmap(file, length)

    def _begin(self) -> None:
        """Take over the row of the worker before, if it counted the same series."""
        told = repr([(f.name, f.labels, f.series, f.width) for f in self.families])
        self._layout = float(zlib.crc32(told.encode()) + 1)
        if self._mine[0] != self._layout:
            for place in range(self._size):
                self._mine[place] = 0.0
            self._mine[0] = self._layout
        for family in self.families:
            if family.kind == "gauge":
                for values in family.series:
                    self._mine[self.at(family.name, *values)] = 0.0

    def at(self, name: str, *values: str) -> int:
        """Where a series lies, for `add`, `set` and `see`."""
        return self._at[name, values]

    def add(self, counts: Iterable[tuple[int, float]]) -> None:
        """Add to counters."""
        mine = self._mine
        with self._lock:
            for place, amount in counts:
                mine[place] += amount

    def set(self, place: int, value: float) -> None:
        """Set a gauge."""
        self._mine[place] = value

    def see(self, place: int, value: float) -> None:
        """Let a histogram see a value."""
        mine = self._mine
        bucket = place + bisect_left(BUCKETS, value)
        with self._lock:
            mine[bucket] += 1.0
            mine[place + len(BUCKETS) + 1] += value

    def total(self) -> npt.NDArray[np.float64]:
        """Every number, of all workers together."""
        # A row of another layout is of a worker whose plugins changed meanwhile.
        known = self._all[self._all[:, 0] == self._layout]
        summed: npt.NDArray[np.float64] = known.sum(axis=0)
        return summed

    def of_workers(self, place: int) -> list[tuple[int, float]]:
        """(worker, from 1; a gauge's value there), of workers that have begun."""
        return [
            (number, float(row[place]))
            for number, row in enumerate(self._all, 1)
            if row[0] == self._layout
        ]
