"""The figures of a run by step, in bounded memory.

At most `max_steps` steps are held. When more have come every second one is let go, so that a run of
any length is shown whole, more coarsely: `every` says how coarsely.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_STEPS = 4096
MAX_KEYS = 1024


@dataclass(frozen=True)
class SeriesView:
    """Some of the figures.

    Args:
        edition: of what they are a part; with another one, steps that were given before do not
            stand any more.
        every: one of so many steps is shown.
        steps: ascending.
        figures: name -> one number a step, NaN where the step has none.
        latest: the figures of the newest step, be it among `steps` or not.
        latest_step: which that is; None where there is none.
    """

    edition: str
    every: int
    steps: Sequence[int]
    figures: Mapping[str, Sequence[float]]
    latest: Mapping[str, float] = field(default_factory=dict)
    latest_step: int | None = None


class Series:
    """Steps are added in ascending order; a step that comes again takes all later ones away.

    Args:
        max_steps: held at once; an even number.
        max_keys: names that are held; further ones are left out.

    Attributes:
        edition: grows when steps that were given out do not stand any more.
        every: one of so many steps is held.
    """

    def __init__(self, *, max_steps: int = MAX_STEPS, max_keys: int = MAX_KEYS) -> None:
        self._max_steps, self._max_keys = max_steps, max_keys
        self.edition = 0
        self.clear()
        self.edition = 0

    def clear(self) -> None:
        """Forget all."""
        self.edition += 1
        self.every = 1
        self.latest: dict[str, float] = {}
        self.latest_step: int | None = None
        self._count = 0
        self._steps: list[int] = []
        self._columns: dict[str, array[float]] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """Every name, in order of first appearance."""
        return tuple(self._columns)

    def add(self, record: Mapping[str, Any]) -> None:
        """One step's figures: ``step`` and numbers; what is no number is left out."""
        step = record.get("step")
        if isinstance(step, bool) or not isinstance(step, int):
            return
        if self.latest_step is not None and step <= self.latest_step:
            self._back_to(step)
        self.latest = {k: float(v) for k, v in record.items() if k != "step" and _is_number(v)}
        self.latest_step = step
        kept = self._count % self.every == 0
        self._count += 1
        if kept:
            self._append(step, self.latest)
        if len(self._steps) > self._max_steps:
            self._thin()

    def view(
        self, edition: str, *, after: int | None = None, prefixes: Iterable[str] = ()
    ) -> SeriesView:
        """The steps after `after` (None: all), of names that begin with one of `prefixes` (none
        given: all). The answer carries `edition`."""
        wanted = tuple(prefixes)
        start = 0
        if after is not None:
            start = next((i for i, s in enumerate(self._steps) if s > after), len(self._steps))
        chosen = [key for key in self._columns if not wanted or key.startswith(wanted)]
        return SeriesView(
            edition=edition,
            every=self.every,
            steps=self._steps[start:],
            figures={key: self._columns[key][start:] for key in chosen},
            latest={k: v for k, v in self.latest.items() if not wanted or k.startswith(wanted)},
            latest_step=self.latest_step,
        )

    def _append(self, step: int, figures: Mapping[str, float]) -> None:
        for name in figures:
            if name not in self._columns and len(self._columns) < self._max_keys:
                self._columns[name] = array("d", [math.nan] * len(self._steps))
        self._steps.append(step)
        for name, column in self._columns.items():
            column.append(figures.get(name, math.nan))

    def _back_to(self, step: int) -> None:
        """Let go of `step` and all later ones: they come again."""
        keep = next((i for i, s in enumerate(self._steps) if s >= step), len(self._steps))
        self._steps = self._steps[:keep]
        self._columns = {name: column[:keep] for name, column in self._columns.items()}
        self._count = keep * self.every
        self.edition += 1

    def _thin(self) -> None:
        self._steps = self._steps[::2]
        self._columns = {name: column[::2] for name, column in self._columns.items()}
        self.every *= 2
        self._count = (len(self._steps) - 1) * self.every + 1
        self.edition += 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
