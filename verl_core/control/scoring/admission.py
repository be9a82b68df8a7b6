"""How much is under way at once: requests, rows and bytes. Beyond it a client is told when to come
again; nothing waits in a line that could grow.

Only the event loop's own thread uses it, so that it needs no lock.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from verl_core.control.problem import Problem

_MEMORY_SECONDS = 10.0  # over which the rate is taken
_LONGEST_RETRY = 60


@dataclass(frozen=True, kw_only=True)
class ScoringLimits:
    """What scoring may take.

    Args:
        requests: under way at once.
        rows: under way at once, in all requests together; one request has no more.
        body_bytes: of one JSON body, or one line of a stream.
        deadline: seconds from a request's last byte to its answer.
        slice_rows: of a stream that are scored together.
        aside: score in a thread of its own, one batch at a time, however small: for an engine that
            somebody else is using.
    """

    requests: int = 64
    rows: int = 65_536
    body_bytes: int = 16 << 20
    deadline: float = 120.0
    slice_rows: int = 256
    aside: bool = False

    @property
    def total_bytes(self) -> int:
        """Of bodies that are read or scored at once."""
        return 4 * self.body_bytes


class Place:
    """A request's share of what may be under way. A context manager: it is free again at the end,
    however that comes."""

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission = admission
        self.size = size
        self.rows = 0

    def take(self, rows: int) -> None:
        """Count its rows, now that they are known. Raises `Problem` as `Admission.enter`."""
        self._admission._take(self, rows)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._admission._leave(self, finished=kind is None)


class Admission:
    """Who may be scored now.

    Args:
        limits: how much at once.
        clock: seconds, for tests.

    Attributes:
        changed: is told after every change; it must be quick.
    """

    def __init__(self, limits: ScoringLimits, clock: Callable[[], float] = monotonic) -> None:
        self.limits = limits
        self.requests = self.rows = self.bytes = 0
        self.refused = 0
        self.changed: Callable[[Admission], None] = _nothing
        self._clock = clock
        self._done: deque[tuple[float, int]] = deque(maxlen=1024)
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter(self, size: int = 0) -> Place:
        """A place for a request.

        Args:
            size: bytes of its body, as far as known.

        Raises:
            Problem: 429 with ``Retry-After``, there is none.
        """
        if self.requests >= self.limits.requests:
            raise self._refusal(f"{self.requests} requests are under way")
        if self.bytes + size > self.limits.total_bytes and self.requests:
            raise self._refusal("the bodies of requests under way fill the memory meant for them")
        self.requests += 1
        self.bytes += size
        self.changed(self)
        return Place(self, size)

    async def wait(self, size: int, rows: int) -> Place:
        """As `enter` and `take`, but in turn: for the next slice of a stream that has begun."""
        while self._is_full(size, rows):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                self._call_next()
                raise
        place = Place(self, size)
        self.requests += 1
        self.bytes += size
        self._count(place, rows)
        return place

    @property
    def rate(self) -> float:
        """Rows a second that were scored of late; 0.0 where none was."""
        now = self._clock()
        while self._done and self._done[0][0] < now - _MEMORY_SECONDS:
            self._done.popleft()
        if not self._done:
            return 0.0
        return sum(rows for _, rows in self._done) / max(now - self._done[0][0], 0.1)

    def retry_after(self) -> int:
        """Whole seconds after which what is under way now should be done."""
        rate = self.rate
        if not rate:
            return 1
        return max(1, min(_LONGEST_RETRY, math.ceil(self.rows / rate)))

    # -- inside ------------------------------------------------------------------------------------

    def _is_full(self, size: int, rows: int) -> bool:
        limits = self.limits
        return (
            self.requests >= limits.requests
            or (self.rows > 0 and self.rows + rows > limits.rows)
            or (self.bytes > 0 and self.bytes + size > limits.total_bytes)
        )

    def _take(self, place: Place, rows: int) -> None:
        if rows > self.limits.rows:
            raise Problem(
                413,
                "too-many-rows",
                f"{rows} rows in one request, and {self.limits.rows} may be under way at once; send"
                " them as lines of application/x-ndjson, or in several requests",
            )
        if self.rows + rows > self.limits.rows:
            raise self._refusal(f"{self.rows} rows are under way")
        self._count(place, rows)

    def _count(self, place: Place, rows: int) -> None:
        self.rows += rows - place.rows
        place.rows = rows
        self.changed(self)

    def _leave(self, place: Place, *, finished: bool) -> None:
        self.requests -= 1
        self.rows -= place.rows
        self.bytes -= place.size
        self.changed(self)
        if finished and place.rows:
            self._done.append((self._clock(), place.rows))
        self._call_next()

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _refusal(self, why: str) -> Problem:
        self.refused += 1
        self.changed(self)
        seconds = self.retry_after()
        return Problem(
            429,
            "overloaded",
            f"{why}: ask again in {seconds} s. Nothing was scored.",
            headers={"Retry-After": str(seconds)},
        )


def _nothing(_: Admission) -> None:
    """Nobody wants to know."""
