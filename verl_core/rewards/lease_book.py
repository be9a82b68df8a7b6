"""The leases that workers elsewhere hold: one a group of responses, the same for all who ask.

A synchronous run leases whole steps (`RewardEngine.lease`). The workers of another trainer meet
here instead: whoever asks first for a group fixes the weights' revision, the step whose scheduled
values it has, and the generation of every mount; later ones get the same lease, with the same id.

What is kept, and for how long:

- **The revision and the step of a group hold for good.** They are in the store's file, beside the
  leases of steps. A group that is asked for again after its lease has ended, or after a restart,
  has another lease under the same revision.
- **The generations hold while the lease lives**: until it is ended, or was not used for `ttl`
  seconds. They live in a process, and each process numbers its own; across processes they are the
  same where their contents are: the code and the files (`Mount.content`). Another process with the
  same file (a second worker) holds them too, from before it replaces the first of them, and for
  `linger` seconds for leases that a slower one still gives on them. One that is behind, because it
  still loads a file that the lease has met, waits for it. One that never had them (started since a
  file was exchanged) ends the lease, for everybody, rather than mix two.
- In memory without a file: a restart forgets all.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from verl_core.rewards.group_leases import GroupRow
from verl_core.rewards.lease import Lease
from verl_core.rewards.persistence import StoreError
from verl_core.rewards.weights import WeightStore
from verl_reward_sdk.errors import VerlRewardError

logger = logging.getLogger(__name__)

LEASE_TTL = 3600.0
"""Seconds after its last use in which a lease ends by itself."""
LINGER = 10.0
"""Seconds for which a worker keeps a generation that it has replaced, where there are others: these
may still give leases on it, until they have loaded the new one."""
MOST_LEASES = 100_000
"""Living leases of one process; each takes some hundred bytes."""

_BY_HAND = "it was ended"
_REMEMBERED = 256  # weights of a revision at a step
_NOTED = 60  # uses within this part of the ttl are one write to the file


class LeaseEnded(VerlRewardError):
    """The lease was given, and has ended: nothing may be scored under it any more."""


class LeaseBehind(VerlRewardError):
    """The lease lives, but this process still loads what it needs for it: ask again soon."""


class NoLease(VerlRewardError):
    """No lease of that id was ever given in this run."""


class TooManyLeases(VerlRewardError):
    """So many leases live that no other is given. Those that are not used end by themselves."""


class OtherRun(VerlRewardError):
    """The lease is for another run than this one."""


@dataclass(frozen=True)
class GivenLease:
    """A lease on a group, as it is handed out.

    Args:
        id: names it from now on.
        group: as it was asked for.
        lease: what holds.
        expires_in: seconds without use after which it ends.
        is_new: nobody had it before.
    """

    id: str
    group: str
    lease: Lease
    expires_in: float
    is_new: bool


class Generations(Protocol):
    """What the book must know of an engine where several processes share a file."""

    def running(self) -> Lease:
        """The generations that serve now."""

    def catch_up(self) -> bool:
        """Wait until the files of now are served; whether they are."""

    def before_swap(self, observer: Callable[[], None]) -> None:
        """Call `observer` before a generation is replaced."""


class LeaseBook:
    """The leases on groups of one run. Every method may be called from any thread.

    Args:
        store: the weights; its file keeps the leases too.
        engine_lease: what holds now, as `RewardEngine.lease` tells; None: there are no mounts, and
            leases are on weights alone.
        generations: the same engine, where another process may have given a lease.
        linger: seconds for which what was replaced is kept for leases that others still give.
        ttl: seconds without use after which a lease ends.
        limit: leases that live in this process.
        clock: seconds since 1970, the same for all processes with the file.

    Errors of each method: `StoreError`, the file could not be read or written.
    """

    def __init__(
        self,
        store: WeightStore,
        engine_lease: Callable[[], Lease] | None = None,
        *,
        generations: Generations | None = None,
        linger: float = 0.0,
        ttl: float = LEASE_TTL,
        limit: int = MOST_LEASES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run_id = store.run_id
        self.ttl = ttl
        self._store, self._engine_lease = store, engine_lease
        self._generations, self.linger = generations, linger
        self._lingering: list[Lease] = []
        self._limit, self._clock = limit, clock
        self._lock = threading.Lock()
        self._read: dict[tuple[int, int], Mapping[str, float]] = {}
        # id -> (what holds its generations, its last use), longest unused first.
        self._held: OrderedDict[str, tuple[Lease, float]] = OrderedDict()
        if generations is not None:
            generations.before_swap(self._before_swap)

    def give(self, run_id: str, group: str, step: int | None = None) -> GivenLease:
        """The lease on a group; the first who asks fixes it.

        Args:
            run_id: the run that the caller believes to talk to.
            group: any text that names the group, within the run for good.
            step: whose scheduled values the weights have; None: the run's own step in progress.

        Raises:
            OtherRun: it is another run.
            TooManyLeases: no further one is given now.
        """
        if run_id != self.run_id:
            raise OtherRun(f"this is run {self.run_id!a}, and the lease is for {run_id!a}")
        now = self._clock()
        row, is_new = self._store.groups.newest(group), False
        if row is None or not self._lives(row, now):
            self._make_room(now)
            base = self._now()
            row, is_new = self._store.groups.give(
                group,
                lambda last: self._lives(last, now),
                lambda: self._store.of_group(step),
                lambda revision, at: GroupRow(
                    secrets.token_urlsafe(12),
                    group,
                    revision,
                    at,
                    base.generations,
                    now,
                    contents=base.contents,
                ),
            )
            if is_new:
                self._hold(row.id, base, now)
        if not is_new:
            self._used(row, now)
        lease = self._lease(row, Lease(0, {}, row.generations))
        return GivenLease(row.id, group, lease, self.ttl, is_new)

    def get(self, lease_id: str) -> Lease:
        """What a lease fixed, to score under it; this is a use of it.

        Raises:
            LeaseEnded: it has ended.
            LeaseBehind: this process cannot score under it yet.
            NoLease: it was never given.
        """
        now = self._clock()
        row = self._living(lease_id, now)
        with self._lock:
            held = self._held.get(lease_id)
        base = self._adopted(row, now) if held is None else held[0]
        self._used(row, now)
        return self._lease(row, base)

    def end(self, lease_id: str) -> None:
        """End a lease, for all who hold it. Errors as in `get`."""
        self._living(lease_id, self._clock())
        self._store.groups.end(lease_id, _BY_HAND)
        with self._lock:
            self._held.pop(lease_id, None)

    # -- inside ------------------------------------------------------------------------------------

    def _lives(self, row: GroupRow, now: float) -> bool:
        return row.ended is None and now < row.used + self.ttl

    def _living(self, lease_id: str, now: float) -> GroupRow:
        row = self._store.groups.get(lease_id)
        if row is None:
            raise NoLease(f"run {self.run_id!a} has given no lease {lease_id!a:.80}")
        if not self._lives(row, now):
            with self._lock:
                self._held.pop(lease_id, None)
            unused = f"it was not used for {self.ttl:g} s"
            raise _ended(row, row.ended or unused)
        return row

    def _adopted(self, row: GroupRow, now: float) -> Lease:
        """What holds the generations of a lease that another process gave."""
        base, differ = self._alike(row)
        if differ:
            why = f"the generations it began with are gone ({', '.join(differ)})"
            self._store.groups.end(row.id, why)
            raise _ended(row, why)
        self._make_room(now)
        self._hold(row.id, base, now)
        return base

    def _alike(self, row: GroupRow) -> tuple[Lease, list[str]]:
        """The generations here that a lease could go on with, and in what they differ from its."""
        if self._generations is None:
            base = self._now()
            return base, _differ(row, base)
        base = self._generations.running()  # before it is looked whether files have changed since
        for known in (base, *self._lingering[::-1]):
            if not _differ(row, known):
                return known, []
        is_newest = self._generations.catch_up()
        base = self._generations.running()
        differ = _differ(row, base)
        if differ and not is_newest:
            raise LeaseBehind(
                f"the lease {row.id} goes on when a new generation is loaded here too"
                f" ({', '.join(differ)})"
            )
        return base, differ

    def _before_swap(self) -> None:
        """Hold what runs for the leases that other processes have given on it, and let go of those
        that have ended there."""
        assert self._generations is not None  # who else calls
        running, now = self._generations.running(), self._clock()
        self._keep_a_while(running)
        with self._lock:
            before = set(self._held)
        try:
            living = {row.id: row for row in self._store.groups.living(now - self.ttl)}
        except StoreError as error:
            logger.warning("leases of other processes may end with this swap: %s", error)
            return
        with self._lock:
            for lease_id in before - living.keys():
                self._held.pop(lease_id, None)
            for row in living.values():
                if len(self._held) >= self._limit:
                    break
                if row.id not in self._held and not _differ(row, running):
                    self._held[row.id] = running, now

    def _keep_a_while(self, running: Lease) -> None:
        if self.linger:
            with self._lock:
                self._lingering = [*self._lingering, running]
            end = threading.Timer(self.linger, self._let_go)
            end.daemon = True
            end.start()

    def _let_go(self) -> None:
        with self._lock:
            self._lingering = self._lingering[1:]

    def _now(self) -> Lease:
        if self._engine_lease is None:
            return Lease(0, {}, {})
        return self._engine_lease()

    def _hold(self, lease_id: str, base: Lease, now: float) -> None:
        with self._lock:
            self._held[lease_id] = base, now

    def _used(self, row: GroupRow, now: float) -> None:
        """Note a use; in the file only now and then, where a write takes a disk's time."""
        with self._lock:
            if row.id in self._held:
                self._held[row.id] = self._held[row.id][0], now
                self._held.move_to_end(row.id)
        if now - row.used > self.ttl / _NOTED:
            self._store.groups.touch(row.id, now)

    def _make_room(self, now: float) -> None:
        """Let go of what was not used for long; refuse where there is no room for another."""
        with self._lock:
            while self._held:
                lease_id, (_, used) = next(iter(self._held.items()))
                if now < used + self.ttl:
                    break
                del self._held[lease_id]
            if len(self._held) >= self._limit:
                raise TooManyLeases(
                    f"{self._limit} leases live already: end those that are done with, or wait"
                    f" until they have not been used for {self.ttl:g} s"
                )

    def _lease(self, row: GroupRow, base: Lease) -> Lease:
        return dataclasses.replace(
            base,
            revision=row.revision,
            weights=self._weights(row.revision, row.step),
            generations=row.generations,  # by the numbers that all who hold it were told
            step=row.step,
        )

    def _weights(self, revision: int, step: int) -> Mapping[str, float]:
        """They never change: the last that were asked for are kept."""
        found = self._read.get((revision, step))
        if found is None:
            found = self._store.at(revision, step).weights
            with self._lock:
                if len(self._read) >= _REMEMBERED:
                    self._read.clear()
                self._read[revision, step] = found
        return found


def _differ(row: GroupRow, base: Lease) -> list[str]:
    """In which generations `base` is another than a lease, in words. They are told apart by what
    they are made of, by number where one of the two does not know that."""
    contents, found = base.contents, []
    for name in sorted({*row.generations, *base.generations}):
        numbers = row.generations.get(name), base.generations.get(name)
        ours, theirs = row.contents.get(name), contents.get(name)
        known = ours is not None and theirs is not None
        if ours != theirs if known else numbers[0] != numbers[1]:
            found.append(f"{name} {numbers[0]} -> {numbers[1]}")
    return found


def _ended(row: GroupRow, why: str) -> LeaseEnded:
    return LeaseEnded(f"the lease {row.id} on {row.name!a:.80} has ended: {why}")
