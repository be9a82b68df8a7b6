"""What the page asks of a run, wherever its figures come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from verl_core.control.run.query import SampleQuery
from verl_core.control.run.series import Series, SeriesView

NOWHERE = (
    "this server keeps no figures of what it scores: its weights and mounts are shown, and can be"
    " changed"
)


@dataclass(frozen=True)
class SamplePage:
    """Samples, newest first.

    Args:
        edition: of what their numbers count; with another one, they count something else.
        rows: ``(number, record)``, records as ``samples.jsonl`` holds them.
        next: search on below this number; None: there is nothing older.
        searched: how many were looked at.
        total: how many there are.
    """

    edition: str
    rows: Sequence[tuple[int, Mapping[str, Any]]]
    next: int | None
    searched: int
    total: int


class RunSource(Protocol):
    """Figures and samples of one run. Every method may be called from any thread."""

    @property
    def kind(self) -> str:
        """``training``, ``serving``, ``folder`` or ``none``."""

    @property
    def axis(self) -> str:
        """What a step of the series counts: ``step``, or ``rows`` scored so far."""

    def facts(self) -> Mapping[str, Any]:
        """Plain values: ``name``, ``model``, ``status``, ``steps``, ``started``, ``note``, …"""

    def series(
        self, *, edition: str | None = None, after: int | None = None, prefixes: Iterable[str] = ()
    ) -> SeriesView:
        """The figures after a step; all of them where `edition` is not that of the answer."""

    def samples(self, query: SampleQuery) -> SamplePage:
        """Samples that a query wants, newest first."""


class NoRun:
    """Where nothing is written down.

    Args:
        note: why, in words.
        facts: what is known besides.
    """

    kind = "none"
    axis = "step"

    def __init__(self, note: str = NOWHERE, **facts: Any) -> None:
        self._facts = {**facts, "note": note}

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def series(
        self, *, edition: str | None = None, after: int | None = None, prefixes: Iterable[str] = ()
    ) -> SeriesView:
        return Series().view("0")

    def samples(self, query: SampleQuery) -> SamplePage:
        return SamplePage("0", (), None, 0, 0)
