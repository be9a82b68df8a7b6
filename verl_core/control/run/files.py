"""The folder of a run, read while a trainer writes to it, or long after."""

from __future__ import annotations

import secrets
import threading
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verl_core.control.run.lines import GrowingFile, record_of
from verl_core.control.run.query import SampleQuery, search
from verl_core.control.run.series import Series, SeriesView
from verl_core.control.run.source import SamplePage

_MOST_SAMPLES = 1 << 20  # places in the file, 8 bytes each; of more the oldest are not found
_LET_GO = 1 << 16


class RunFiles:
    """``metrics.jsonl`` and ``samples.jsonl`` of a folder; nothing is ever written.

    What has come since the last look is read when somebody asks. Memory is bounded whatever the
    length of the run: of the figures `Series` says how, of the samples only their places in the
    file are held.

    Args:
        folder: the run's.
        kind: ``training``, or ``folder`` for one that is only looked at.
        facts: what is known of the run besides.
    """

    axis = "step"

    def __init__(
        self, folder: Path, *, kind: str = "training", facts: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self.kind = kind
        self._facts = dict(facts or {})
        self._nonce = secrets.token_hex(3)
        self._lock = threading.Lock()
        self._metrics = GrowingFile(folder / "metrics.jsonl")
        self._series = Series()
        self._samples = GrowingFile(folder / "samples.jsonl")
        self._places = array("Q")
        self._first = 0  # number of the sample at places[0]

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def series(
        self, *, edition: str | None = None, after: int | None = None, prefixes: Iterable[str] = ()
    ) -> SeriesView:
        with self._lock:
            self._read_metrics()
            current = f"{self._nonce}.{self._metrics.edition}.{self._series.edition}"
            start = after if edition == current else None
            return self._series.view(current, after=start, prefixes=prefixes)

    def samples(self, query: SampleQuery) -> SamplePage:
        with self._lock:
            self._read_places()
            total = self._first + len(self._places)
            top = total if query.before is None else min(max(query.before, 0), total)
            numbers = range(top - 1, self._first - 1, -1)
            rows, after, searched = search(numbers, self._sample, query)
            edition = f"{self._nonce}.{self._samples.edition}"
            return SamplePage(edition, rows, after, searched, total)

    def _read_metrics(self) -> None:
        before = self._metrics.edition
        for _, line in self._metrics.poll():
            if self._metrics.edition != before:
                before = self._metrics.edition
                self._series.clear()
            record = record_of(line)
            if record is not None:
                self._series.add(record)
        if self._metrics.edition != before:
            self._series.clear()

    def _read_places(self) -> None:
        before = self._samples.edition
        for offset, _ in self._samples.poll():
            if self._samples.edition != before:
                before = self._samples.edition
                self._forget_places()
            self._places.append(offset)
        if self._samples.edition != before:
            self._forget_places()
        if len(self._places) > _MOST_SAMPLES + _LET_GO:
            gone = len(self._places) - _MOST_SAMPLES
            del self._places[:gone]
            self._first += gone

    def _forget_places(self) -> None:
        del self._places[:]
        self._first = 0

    def _sample(self, number: int) -> tuple[Mapping[str, Any] | None, int]:
        line = self._samples.read_at(self._places[number - self._first])
        return record_of(line), len(line)
