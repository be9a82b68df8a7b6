"""``GET /metrics``: the numbers of all workers, in Prometheus' text formats.

What grows lies on the board. What merely is (revision, weights, readiness) is read when it is
asked for.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from verl_core import __version__
from verl_core.control.metrics.board import BUCKETS, Board, Family
from verl_core.control.state import ControlState

_BOUNDS = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]


class Page:
    """What ``GET /metrics`` answers.

    Args:
        board: the numbers.
        state: the run.
    """

    def __init__(self, board: Board, state: ControlState) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Both(board, state))

    def text(self, accept: str) -> tuple[bytes, str]:
        """The page and its media type, as the client's Accept header wishes."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type


class _Both(Collector):
    def __init__(self, board: Board, state: ControlState) -> None:
        self._board, self._state = board, state

    def collect(self) -> Iterator[Metric]:
        total = self._board.total()
        for family in self._board.families:
            if family.of_worker:
                yield _of_workers(family, self._board)
            else:
                yield _READ[family.kind](family, total, self._board)
        yield from _standing(self._state)


def _of_workers(family: Family, board: Board) -> Metric:
    metric = GaugeMetricFamily(family.name, family.help, labels=(*family.labels, "worker"))
    for values in family.series:
        for worker, value in board.of_workers(board.at(family.name, *values)):
            metric.add_metric((*values, str(worker)), value)
    return metric


def _counter(family: Family, total: npt.NDArray[np.float64], board: Board) -> Metric:
    metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
    for values in family.series:
        value = float(total[board.at(family.name, *values)])
        if value or family.shows_zero:
            metric.add_metric(values, value)
    return metric


def _gauge(family: Family, total: npt.NDArray[np.float64], board: Board) -> Metric:
    metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for values in family.series:
        metric.add_metric(values, float(total[board.at(family.name, *values)]))
    return metric


def _histogram(family: Family, total: npt.NDArray[np.float64], board: Board) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for values in family.series:
        place = board.at(family.name, *values)
        counts = np.cumsum(total[place : place + len(_BOUNDS)]).tolist()
        if counts[-1] or family.shows_zero:
            metric.add_metric(
                values,
                buckets=list(zip(_BOUNDS, counts, strict=True)),
                sum_value=float(total[place + len(_BOUNDS)]),
            )
    return metric


_READ: dict[str, Callable[[Family, npt.NDArray[np.float64], Board], Metric]] = {
    "counter": _counter,
    "gauge": _gauge,
    "histogram": _histogram,
}


def _standing(state: ControlState) -> Iterable[Metric]:
    """What the run is now. The weights' file is looked at, so that every worker tells the same."""
    newest, status = state.store.refresh(), state.status()
    yield InfoMetricFamily(
        "verl_reward_build",
        "What runs here.",
        value={"version": __version__, "python": platform.python_version()},
    )
    yield InfoMetricFamily("verl_reward_run", "Which run this is.", value={"run_id": state.run_id})
    yield GaugeMetricFamily(
        "verl_reward_revision", "The newest revision of the weights.", value=newest.revision
    )
    weight = GaugeMetricFamily(
        "verl_reward_weight", "A mount's weight at the run's step.", labels=("mount",)
    )
    pinned = GaugeMetricFamily(
        "verl_reward_weight_pinned", "1: the weight was changed live.", labels=("mount",)
    )
    for name, value in newest.weights.items():
        weight.add_metric((name,), value)
        pinned.add_metric((name,), float(name in newest.pinned))
    yield from (weight, pinned)
    step = status.get("step")
    yield GaugeMetricFamily(
        "verl_reward_step", "The run's step.", value=newest.step if step is None else step
    )
    yield GaugeMetricFamily(
        "verl_reward_ready", "1: as /readyz.", value=float(bool(status.get("ready", True)))
    )
    for key, said in (("workers", "Workers that there are."), ("workers_ready", "Of them, ready.")):
        found = status.get(key)
        if isinstance(found, (int, float)) and math.isfinite(found):
            yield GaugeMetricFamily(f"verl_reward_{key}", said, value=found)
