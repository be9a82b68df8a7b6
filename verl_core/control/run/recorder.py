"""What a server that only scores has to show: its last figures and samples, in memory.

A training run writes its figures down; ``verl-reward serve`` has no steps and no folder of them.
Here the batches that it scores are gathered into intervals, and an interval is what a step is
elsewhere. The axis is the number of rows scored so far.

The cost is bounded, since it is paid by those who wait for their scores: no more than `share` of
the time goes into it. Batches that come when an interval's part of that is spent are counted and
not looked at (``record/looked_at`` is the share of rows that were).
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from verl_core.control.run.query import SampleQuery, search
from verl_core.control.run.series import Series, SeriesView
from verl_core.control.run.source import SamplePage
from verl_core.rewards.metric_names import REVISION
from verl_core.rewards.table import RewardTable
from verl_reward_sdk.batch import RewardBatch

if TYPE_CHECKING:
    from verl_core.rewards.engine import RewardEngine

LOOKED_AT = "record/looked_at"
_LONGEST_TEXT = 20_000


class Recorder:
    """Gathers what a `RewardEngine` scores; made by `of`.

    Args:
        facts: what is known of the server besides.
        seconds: the length of an interval.
        share: of an interval's time, at most so much goes into looking at batches.
        samples: held at most, newest first.
        samples_per_interval: taken at most.
        clock: seconds that only grow.
    """

    kind = "serving"
    axis = "rows"

    def __init__(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        seconds: float = 1.0,
        share: float = 0.02,
        samples: int = 400,
        samples_per_interval: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts = dict(facts or {})
        self._seconds, self._budget = seconds, share * seconds
        self._per_interval = samples_per_interval
        self._clock = clock
        self._nonce = secrets.token_hex(3)
        self._lock = threading.Lock()
        self._series = Series()
        self._kept: deque[tuple[int, dict[str, Any]]] = deque(maxlen=samples)
        self._taken = 0  # samples ever
        self._rows = 0  # rows ever
        self._interval = _Interval(clock())

    @classmethod
    def of(cls, engine: RewardEngine, **facts: Any) -> Recorder:
        """One that gathers what `engine` scores from now on."""
        recorder = cls(facts)
        engine.subscribe(recorder.observe)
        return recorder

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def observe(self, batch: RewardBatch, table: RewardTable) -> None:
        """One batch was scored."""
        start = self._clock()
        with self._lock:
            self._close_if_over(start)
            interval = self._interval
            self._rows += len(table)
            interval.rows += len(table)
            if not len(table) or interval.spent >= self._budget:
                return
            interval.add(table)
            if interval.samples < self._per_interval:
                self._take(batch, table)
            interval.spent += self._clock() - start

    def series(
        self, *, edition: str | None = None, after: int | None = None, prefixes: Iterable[str] = ()
    ) -> SeriesView:
        with self._lock:
            self._close_if_over(self._clock())
            current = f"{self._nonce}.{self._series.edition}"
            start = after if edition == current else None
            return self._series.view(current, after=start, prefixes=prefixes)

    def samples(self, query: SampleQuery) -> SamplePage:
        with self._lock:
            kept = dict(self._kept)
            total = self._taken
        top = total if query.before is None else query.before
        numbers = [number for number in reversed(kept) if number < top]
        rows, after, searched = search(numbers, lambda number: (kept[number], 0), query)
        return SamplePage(self._nonce, rows, after, searched, total)

    # -- inside, under the lock ------------------------------------------------------------------

    def _close_if_over(self, now: float) -> None:
        """End the interval if it is over; one in which nothing was scored leaves no trace."""
        if now - self._interval.began < self._seconds:
            return
        if self._interval.rows:
            self._series.add({"step": self._rows, **self._interval.figures()})
        self._interval = _Interval(now)

    def _take(self, batch: RewardBatch, table: RewardTable) -> None:
        """The row of the lowest and that of the highest fused reward, as far as there is room."""
        ranked = sorted(range(len(table)), key=lambda row: _rank(float(table.fused[row])))
        for row in dict.fromkeys((ranked[0], ranked[-1])):
            if self._interval.samples < self._per_interval:
                self._interval.samples += 1
                self._kept.append((self._taken, self._sample(batch, table, row)))
                self._taken += 1

    def _sample(self, batch: RewardBatch, table: RewardTable, row: int) -> dict[str, Any]:
        fused = float(table.fused[row])
        return {
            "step": self._rows,
            "sample_id": table.sample_ids[row],
            "group_id": None if table.group_ids is None else str(table.group_ids[row]),
            "prompt": batch.prompt_text[row][:_LONGEST_TEXT],
            "response": batch.responses[row][:_LONGEST_TEXT],
            "fused": fused if math.isfinite(fused) else None,
            "explain": table.explain(row),
        }


class _Interval:
    """What was scored since it began."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.rows = 0
        self.samples = 0
        self.spent = 0.0
        self._looked = 0
        self._sums: dict[str, float] = {}
        self._weights: dict[str, int] = {}
        self._revision = 0.0

    def add(self, table: RewardTable) -> None:
        rows = len(table)
        self._looked += rows
        for name, value in table.metrics().items():
            self._sums[name] = self._sums.get(name, 0.0) + rows * value
            self._weights[name] = self._weights.get(name, 0) + rows
        self._revision = max(self._revision, float(table.revision))

    def figures(self) -> dict[str, float]:
        """Means over the batches, weighted by their rows; of the revision the newest."""
        means = {name: total / self._weights[name] for name, total in self._sums.items()}
        if self._looked:
            means[REVISION] = self._revision
        return {**means, LOOKED_AT: self._looked / self.rows, "record/rows": float(self.rows)}


def _rank(value: float) -> float:
    """A row without a reward stands between the others."""
    return value if math.isfinite(value) else 0.0
