"""Requests that are there at the same moment, scored at once.

What scoring costs is mostly the same for one row and for a hundred. So requests of few rows that
have come in during one turn of the server's loop are scored as one batch, under one lease, and each
is given its own rows of the table. Nothing waits for others to come.

Only where it makes no difference to a row with whom it is scored:

- Every mount runs inline, scores rows one by one (`scope`, and no `order_tolerance`), and learns
  nothing; nothing is normalised; the policy looks at a row alone.
- Every mount has scored every row. A batch with an abstention or a failure is scored again, each
  request by itself: what fills such a place comes from a request's own rows, and one client's row
  at which a provider breaks must not fail another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import NamedTuple

from verl_core.control.scoring.batch import Rows, batch_of
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.lease import Lease
from verl_core.rewards.table import RewardTable

_ROW_WISE = frozenset({"weighted_sum", "weighted_mean", "product", "min"})
_MOST_ROWS = 512


class Part(NamedTuple):
    """A request's rows of a table: from `start` to before `stop`."""

    table: RewardTable
    start: int
    stop: int


class _Asked(NamedTuple):
    rows: Rows
    answer: asyncio.Future[Part]


class Joiner:
    """Scores what is asked during one turn of the loop.

    Args:
        engine: whose mounts are all inline.
        lease_now: a lease, or None where one must be waited for.
        lease: waits for one.
    """

    def __init__(
        self,
        engine: RewardEngine,
        lease_now: Callable[[], Lease | None],
        lease: Callable[[], Awaitable[Lease]],
    ) -> None:
        self._engine, self._lease_now, self._lease = engine, lease_now, lease
        self._waiting: list[_Asked] = []
        self._rows = 0
        self._late: set[asyncio.Task[None]] = set()
        self.is_row_wise = _is_row_wise(engine)

    async def score(self, rows: Rows) -> Part:
        """The rows' part of a table. Raises whatever the engine does."""
        loop = asyncio.get_running_loop()
        asked = _Asked(rows, loop.create_future())
        if self._rows + len(rows) > _MOST_ROWS:
            self._flush()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append(asked)
        self._rows += len(rows)
        return await asked.answer

    # -- inside ------------------------------------------------------------------------------------

    def _flush(self) -> None:
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if not waiting:
            return
        lease = self._lease_now()
        if lease is not None:
            self._score(waiting, lease)
            return
        task = asyncio.ensure_future(self._score_late(waiting))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _score_late(self, waiting: list[_Asked]) -> None:
        try:
            lease = await self._lease()
        except Exception as error:  # noqa: BLE001  (each request's own, to raise)
            for asked in waiting:
                _end(asked, error)
            return
        self._score(waiting, lease)

    def _score(self, waiting: list[_Asked], lease: Lease) -> None:
        if len(waiting) > 1 and self.is_row_wise and self._score_joined(waiting, lease):
            return
        for asked in waiting:
            try:
                table = self._alone(asked.rows, lease)
            except Exception as error:  # noqa: BLE001  (the request's own, to raise)
                _end(asked, error)
            else:
                _end(asked, Part(table, 0, len(table)))

    def _alone(self, rows: Rows, lease: Lease) -> RewardTable:
        batch = batch_of(rows, self._engine.reads, training=False)
        return self._engine.score(batch, lease=lease)

    def _score_joined(self, waiting: list[_Asked], lease: Lease) -> bool:
        """Whether all were answered."""
        rows = _joined([asked.rows for asked in waiting])
        if rows is None:
            return False
        try:
            table = self._alone(rows, lease)
        except Exception:  # noqa: BLE001  (whose fault it is shows when each is scored alone)
            return False
        if any(column.codes.any() for column in table.columns.values()):
            return False
        start = 0
        for asked in waiting:
            stop = start + len(asked.rows)
            _end(asked, Part(table, start, stop))
            start = stop
        return True


def _joined(each: list[Rows]) -> Rows | None:
    """All rows, in order; None where they do not go into one batch."""
    optional = [
        tuple(
            len(column) and column[0] is None
            for column in (r.groups, r.trajectories, r.ids, r.masks)
        )
        for r in each
    ]
    if any(shape != optional[0] for shape in optional):
        return None
    rows = Rows(*(tuple(chain.from_iterable(column)) for column in zip(*each, strict=True)))
    named = [name for name in rows.sample_ids if name is not None]
    if named:
        numbers = (str(i) for i, name in enumerate(rows.sample_ids) if name is None)
        if len({*named, *numbers}) < len(rows):
            return None
    return rows


def _shape(rows: Rows) -> list[bool]:
    """Which fields stand in all rows."""
    optional = (rows.groups, rows.trajectories, rows.ids, rows.masks)
    return [len(column) > 0 and column[0] is not None for column in optional]


def _is_row_wise(engine: RewardEngine) -> bool:
    policy = engine.policy
    if policy.name not in _ROW_WISE or not type(policy).__module__.startswith("verl_core."):
        return False
    return all(
        mount.config.normalize == "none"
        and mount.provider.scope == "row"
        and not mount.provider.order_tolerance
        and not (mount.learner is not None and mount.learner.learns)
        for mount in engine.mounts.values()
    )


def _end(asked: _Asked, result: Part | Exception) -> None:
    if asked.answer.done():  # the client has left
        return
    if isinstance(result, Exception):
        asked.answer.set_exception(result)
    else:
        asked.answer.set_result(result)
