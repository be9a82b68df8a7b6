"""Where a run stands: what the display shows, without a word on how."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_core.trainer import jsonl, series

RECENT_STEPS = 5
"""Steps whose mean duration foretells the rest: the last ones, since responses grow and shrink."""

FIRST_STEPS = 3
"""A run's first steps, whose mean is what a figure is compared with; fewer in a short run."""


@dataclass
class Phase:
    """Something that is not a training step: a model that loads, an evaluation.

    Args:
        title: what is being done, without a full stop.
        total: of how many units it consists; None where that is not known.
        unit: what is counted, such as ``prompts``.
        moved: called after each `advance`.
    """

    title: str
    total: int | None = None
    unit: str = ""
    moved: Callable[[Phase, int], None] | None = None
    completed: int = 0
    result: str = ""
    began: float = field(default_factory=time.monotonic)

    def advance(self, count: int = 1) -> None:
        """`count` more units are done."""
        before, self.completed = self.completed, self.completed + count
        if self.moved is not None:
            self.moved(self, before)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


@dataclass
class Progress:
    """A run's figures so far, in the order in which they came.

    `stopping`: it was asked to end after the step that runs.
    """

    name: str
    steps: int
    step: int = 0
    url: str | None = None
    stage: str | None = None
    phase: Phase | None = None
    stopping: bool = False
    history: dict[str, list[float | None]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    step_began: float = field(default_factory=time.monotonic)
    first_step: int | None = None
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    _taken: int = 0

    def take(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add the figures of a finished step; those that are no finite number are gaps."""
        now = time.monotonic()
        self._add(step, metrics)
        self._durations.append(self.last(series.STEP_SECONDS) or now - self.step_began)
        self.step, self.step_began, self.stage = step, now, None

    def recall(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the figures of steps that an earlier life of the run has made, as of metrics.jsonl;
        `step` stays, and so does the time that has passed."""
        for record in records:
            figures = {key: value for key, value in record.items() if key not in ("step", "time")}
            self._add(record.get("step", 1), figures)
            if (seconds := self.last(series.STEP_SECONDS)) is not None:
                self._durations.append(seconds)

    def _add(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self.first_step is None:
            self.first_step = step
        figures = {key: jsonl.plain(value) for key, value in metrics.items()}
        for key, value in figures.items():
            past = self.history.setdefault(key, [None] * self._taken)
            past.append(float(value) if isinstance(value, (int, float)) else None)
        self._taken += 1
        for past in self.history.values():
            past.extend([None] * (self._taken - len(past)))

    def mark(self) -> None:
        """The next step begins now: what came before it was no step."""
        self.step_began = time.monotonic()

    def last(self, key: str) -> float | None:
        past = self.history.get(key)
        return past[-1] if past else None

    @property
    def latest(self) -> dict[str, float]:
        """The last step's figures that are there."""
        return {key: past[-1] for key, past in self.history.items() if past[-1] is not None}

    def before_last(self, key: str) -> float | None:
        past = self.history.get(key, ())
        return past[-2] if len(past) > 1 else None

    @property
    def window(self) -> int:
        """How many of the first steps a figure is compared with; 0 where there is one step only."""
        return min(FIRST_STEPS, self._taken // 2)

    def change(self, key: str) -> float | None:
        """How far a figure has come: that of the last step, less the mean over the `window`."""
        now = self.last(key)
        first = [value for value in self.history.get(key, ())[: self.window] if value is not None]
        return None if now is None or not first else now - sum(first) / len(first)

    @property
    def mounts(self) -> tuple[str, ...]:
        return series.reward_mounts(self.history)

    @property
    def gates(self) -> tuple[str, ...]:
        return series.gates(self.history)

    @property
    def elapsed(self) -> float:
        """Seconds since the display began."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float | None:
        """Seconds that the remaining steps will take, None before the first has ended."""
        if not self._durations:
            return None
        mean = sum(self._durations) / len(self._durations)
        running = min(time.monotonic() - self.step_began, mean) if self.step < self.steps else 0.0
        return max(mean * (self.steps - self.step) - running, 0.0)

    def revision_change(self) -> str | None:
        """``step 7: weights revision 1 -> 2, tone 2 -> 0.5`` where the last step brought one."""
        before, now = self.before_last(series.REVISION), self.last(series.REVISION)
        if before is None or now is None or before == now:
            return None
        text = f"step {self.step}: weights revision {before:.0f} -> {now:.0f}"
        for mount in self.mounts:
            old, new = (pick(series.weight_of(mount)) for pick in (self.before_last, self.last))
            if old is not None and new is not None and old != new:
                text += f", {mount} {old:.4g} -> {new:.4g}"
        return text
