"""Scores requests: which lease, whether there is room, where it runs, and until when.

What takes no time (few rows, and mounts that all run inline) is scored where it is, on the server's
own loop: a hop to a thread and back costs more than the scoring. All else runs in a thread with a
loop of its own, so that a probe is answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect

from verl_core.control.problem import Problem
from verl_core.control.scoring.admission import Admission, ScoringLimits
from verl_core.control.scoring.aside import Aside
from verl_core.control.scoring.batch import Rows, batch_of, invalid
from verl_core.control.scoring.joined import Joiner, Part
from verl_core.control.scoring.models import ScoreOptions
from verl_core.rewards.lease import Lease
from verl_core.rewards.table import RewardTable
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, ContractError, RewardError, VerlRewardError

if TYPE_CHECKING:
    from verl_core.control.state import ControlState

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]

_QUICK_ROWS, _QUICK_BYTES = 256, 256 << 10


class ScoreService:
    """One engine's scoring, for all routes that offer it.

    Args:
        state: the run; it has an engine.
    """

    def __init__(self, state: ControlState) -> None:
        assert state.engine is not None
        self.state = state
        self.engine = state.engine
        self.limits: ScoringLimits = state.scoring
        self.admission = Admission(self.limits)
        self._aside = Aside("verl-reward-scoring")
        self._one = asyncio.Lock() if self.limits.aside else None
        mounts = self.engine.mounts.values()
        self._is_inline = not self.limits.aside and all(
            mount.execution == "inline" and not mount.blocks for mount in mounts
        )
        self._joiner = Joiner(self.engine, self._lease_now, self._own_lease)

    @property
    def reads(self) -> frozenset[str]:
        """The columns that every row must have."""
        return self.engine.reads

    def check_ready(self) -> None:
        """Raise `Problem`: 503 while the mounts are loaded, 409 where this run may not score."""
        status = self.state.status()
        # A server that is about to stop is not ready, and scores what it is still asked.
        if not status.get("loaded", status.get("ready", True)):
            raise Problem(
                503,
                "not-ready",
                "the mounts are not all loaded yet; /readyz tells when they are",
                headers={"Retry-After": "1"},
            )
        why = self.state.cannot_score()
        if why is not None:
            raise Problem(409, "cannot-score", why)

    async def lease(self, options: ScoreOptions) -> Lease:
        """What a stream is scored under, or a request that names a lease or a group.

        Raises:
            LeaseEnded, NoLease, TooManyLeases: of the book.
            Problem: 422 both are named.
        """
        if options.lease is None and options.group is None:
            return await self._own_lease()
        return await asyncio.to_thread(held_lease, self.state, options.lease, options.group)

    async def _own_lease(self) -> Lease:
        found = self._lease_now()
        return await asyncio.to_thread(self._lease_then) if found is None else found

    def _lease_now(self) -> Lease | None:
        """A lease of its own; None where the loop would have to wait for it: while a change of the
        weights is written, or until a changed file is loaded."""
        store = self.engine.store
        if store is not None and store.path is not None and not store.look():
            return None
        return self.engine.lease() if self.engine.quiet else None

    def _lease_then(self) -> Lease:
        if self.engine.store is not None:
            self.engine.store.refresh()
        return self.engine.lease()

    async def score(
        self,
        rows: Rows,
        lease: Lease | None,
        *,
        training: bool,
        size: int,
        timeout: float | None,
        receive: Receive | None,
        then: Callable[[Part], T],
    ) -> T:
        """Score the rows, which have been checked, and give what `then` makes of the table.

        Args:
            lease: None: one of its own.
            size: bytes that they came in.
            timeout: seconds; the server's deadline where it is None or longer.
            receive: the request's, for a client that leaves; None: nobody listens there.

        Raises:
            Problem: 503 it may not be trained on; 422; 504 the deadline has passed.
            ClientDisconnect: the client is gone.
        """
        reads = self.reads
        if self._is_inline and len(rows) <= _QUICK_ROWS and size <= _QUICK_BYTES:
            with told():
                if lease is None and not training:
                    return then(await self._joiner.score(rows))
                batch = batch_of(rows, reads, training=training)
                held = lease or await self._own_lease()
                return then(_whole(self.engine.score(batch, lease=held)))
        held = lease or await self._own_lease()

        async def work() -> T:
            batch = batch_of(rows, reads, training=training)
            return then(_whole(await self.engine.ascore(batch, lease=held)))

        with told():
            return await self._until(work, timeout, receive)

    async def score_batch(
        self, batch: RewardBatch, *, receive: Receive | None = None
    ) -> RewardTable:
        """Score a batch of another route under a lease of its own; errors as in `score`, but the
        engine's own are not turned into problems."""
        lease = await self._own_lease()

        async def work() -> RewardTable:
            return await self.engine.ascore(batch, lease=lease)

        with self.admission.enter() as place:
            place.take(len(batch))
            if self._is_inline and len(batch) <= _QUICK_ROWS:
                return self.engine.score(batch, lease=lease)
            return await self._until(work, None, receive)

    async def _until(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        timeout: float | None,
        receive: Receive | None,
    ) -> T:
        seconds = min(self.limits.deadline, timeout or self.limits.deadline)
        if self._one is None:
            return await self._race(work, seconds, receive)
        async with self._one:
            return await self._race(work, seconds, receive)

    async def _race(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        seconds: float,
        receive: Receive | None,
    ) -> T:
        """Whichever is first: the answer, the deadline, or that the client leaves."""
        answer = asyncio.wrap_future(self._aside.submit(work()))
        gone = None if receive is None else asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait(
                [one for one in (answer, gone) if one is not None],
                timeout=seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if answer.done():
                return answer.result()
            if gone is not None and gone.done():
                raise ClientDisconnect
            raise Problem(
                504,
                "deadline",
                f"no answer within {seconds:g} s (server.deadline, or the request's timeout)",
            )
        finally:
            for one in (answer, gone):
                if one is not None and not one.done():
                    one.cancel()

    def close(self) -> None:
        """End its thread."""
        self._aside.close()


def held_lease(state: ControlState, identifier: str | None, group: str | None) -> Lease:
    """A lease of the control plane's book: an id's, or a group's, which the first asker fixes."""
    if identifier is not None and group is not None:
        raise invalid([{"pointer": "#/group", "detail": "name a lease or a group, not both"}])
    if identifier is None:
        assert group is not None
        identifier = state.leases.give(state.run_id, group).id
    return state.leases.get(identifier)


def _whole(table: RewardTable) -> Part:
    return Part(table, 0, len(table))


async def _gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class told:
    """Turns the engine's refusals into problems."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        problem = problem_for(error)
        if problem is not None:
            raise problem from error


def problem_for(error: BaseException | None) -> Problem | None:
    """The problem that a refusal of the engine is; None for anything else."""
    if isinstance(error, RewardError):
        return Problem(
            503, "no-reward", f"{error}. Nothing was scored.", headers={"Retry-After": "1"}
        )
    if isinstance(error, (ConfigError, ContractError)):
        return Problem(422, "cannot-score", f"{error}. Nothing was scored.")
    if isinstance(error, VerlRewardError):
        return Problem(503, "no-reward", str(error), headers={"Retry-After": "1"})
    return None
