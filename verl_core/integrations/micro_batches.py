"""Single rows that arrive one by one, scored together where that costs no time.

A trainer that hands over one row a call (verl) would have every provider called with batches of
one. `MicroBatches` collects what is there already: a row that arrives while nothing is under way
goes at once, together with those that arrived in the same turn of the event loop; rows that arrive
while as many calls as allowed are under way wait for one of them to end, and then go together.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Row = TypeVar("Row")
Answer = TypeVar("Answer")


class MicroBatches(Generic[Row, Answer]):
    """Scores rows in batches of those that happen to be there.

    It may be used from several event loops at once; each has a queue of its own.

    Args:
        score: gives, in order, one answer a row, or the exception that this row's caller is to
            see. What it raises itself goes to every row of the batch.
        rows: the largest batch.
        calls: how many batches may be under way at once on one event loop.
    """

    def __init__(
        self,
        score: Callable[[Sequence[Row]], Awaitable[Sequence[Answer | Exception]]],
        *,
        rows: int,
        calls: int,
    ) -> None:
        if rows < 1 or calls < 1:
            raise ValueError(f"rows and calls are at least 1, not {rows} and {calls}")
        self._score = score
        self._rows = rows
        self._calls = calls
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[Row, Answer]] = (
            weakref.WeakKeyDictionary()
        )

    async def add(self, row: Row) -> Answer:
        """The answer to `row`, once the batch it went with has been scored."""
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = _Queue(self._score, self._rows, self._calls)
        future: asyncio.Future[Answer] = loop.create_future()
        queue.put(row, future, loop)
        return await future


class _Queue(Generic[Row, Answer]):
    """The rows of one event loop. It does not refer to that loop, which may be closed any time."""

    def __init__(
        self,
        score: Callable[[Sequence[Row]], Awaitable[Sequence[Answer | Exception]]],
        rows: int,
        calls: int,
    ) -> None:
        self._score, self._rows, self._calls = score, rows, calls
        self._waiting: deque[tuple[Row, asyncio.Future[Answer]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._due = False

    def put(
        self, row: Row, future: asyncio.Future[Answer], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._waiting.append((row, future))
        if not self._due and len(self._running) < self._calls:
            self._due = True
            loop.call_soon(self._start)  # behind the callers that are ready already

    def _start(self) -> None:
        """Send off what waits, as far as calls are free."""
        self._due = False
        while self._waiting and len(self._running) < self._calls:
            count = min(self._rows, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            batch = [(row, future) for row, future in batch if not future.done()]  # cancelled
            if batch:
                task = asyncio.ensure_future(self._run(batch))
                self._running.add(task)

    async def _run(self, batch: Sequence[tuple[Row, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._score([row for row, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        except Exception as error:  # noqa: BLE001  (it is raised again, by every row's caller)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        except asyncio.CancelledError:  # the event loop ends: nobody will be answered any more
            for _, future in (*batch, *self._waiting):
                future.cancel()
            self._waiting.clear()
            raise
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._running.discard(task)
            self._start()
