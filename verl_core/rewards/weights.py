"""WeightStore: the weights of a run, as revisions that only grow.

A weight has a *base* (what the config gives it: a number or a schedule) and may have a *pin*, a
live value over it. A change pins; `WeightStore.unpin` lets the base show again. Every change is a
new revision, written whole; readers take immutable snapshots and never wait for a writer.

A lease fixes a revision for a step of the run and is kept with the revisions, so that a resumed
run replays each step's revision and only later changes are new to it. A change takes effect after
the last leased step, with the next one (`WeightSnapshot.effective_step`).

What happens when a store is opened again: `verl_core.rewards.opening`.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from verl_core.rewards.group_leases import GroupLeases
from verl_core.rewards.opening import Opening, append, config_dials
from verl_core.rewards.persistence import BUSY_SECONDS, LEASE_SECONDS, RevisionLog
from verl_core.rewards.presence import Presence
from verl_core.rewards.revisions import (
    Dial,
    Dials,
    KeptWeights,
    Record,
    WeightChange,
    WeightSnapshot,
    change_of,
    snapshot_of,
)
from verl_core.rewards.schedules import Setting
from verl_core.rewards.weight_rules import (
    Check,
    StaleRevision,
    WeightError,
    WeightRules,
    check_author,
    check_reason,
)

__all__ = ["StaleRevision", "WeightChange", "WeightError", "WeightSnapshot", "WeightStore"]

logger = logging.getLogger(__name__)

_MAX_STEP = 1 << 53  # beyond it a JSON reader may take one step for another

Observer: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


class WeightStore:
    """The live weights of one run. Every method may be called from any thread.

    Args:
        weights: mount -> weight or schedule as the config gives it, gates left out, config order.
        run_id: the run; None takes the one that wrote `path` last, or a new name.
        path: the SQLite file that keeps the revisions; None keeps them in memory.
        shared: `path` is meant to be open in several processes, as in the workers of another
            trainer: nobody is told that it is, neither here nor by the others.
        gates: names of gates, so that a weight for one is refused in words.
        allow_zero: whether all weights may be 0 at once.
        check: the fusion policy's refusal: raises `VerlRewardError` or `ValueError` for weights
            that it cannot serve. Asked before a revision is written, for its every step.
        busy_seconds: how long a change waits for another program that holds `path`.
        lease_seconds: how long a lease does.
        kept: of a run that is resumed: what its checkpoint knows of its weights.

    Attributes:
        groups: the leases of groups, which `LeaseBook` gives.
        lost: what a person must be told where `path` lacked revisions of the run, else None.

    Raises:
        ConfigError: the config's weights, or those that `path` holds, cannot be used.
        StoreError: `path` is damaged.
    """

    def __init__(
        self,
        weights: Mapping[str, Setting],
        *,
        run_id: str | None = None,
        path: Path | None = None,
        shared: bool = False,
        gates: Collection[str] = (),
        allow_zero: bool = False,
        check: Check | None = None,
        busy_seconds: float = BUSY_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        kept: KeptWeights | None = None,
    ) -> None:
        self._lease_seconds = lease_seconds
        self._rules = WeightRules(frozenset(gates), allow_zero, () if check is None else (check,))
        self._observers: list[Observer] = []
        self._lock = threading.RLock()
        dials = config_dials(weights)
        self._log = RevisionLog(path, busy_seconds=busy_seconds)
        try:
            with self._log.transaction():
                self.run_id = run_id or self._log.newest_run() or uuid.uuid4().hex[:12]
                opening = Opening(self._log, self._rules, self.run_id)
                record, step = opening.begin(dials, kept)
            self._seen = self._log.data_version()
        except BaseException:
            self._log.close()
            raise
        self.groups = GroupLeases(self._log, self.run_id)
        self._presence = Presence(None if shared else path)
        self._leave = weakref.finalize(self, self._presence.close)  # also of one nobody closed
        if not self._presence.alone:
            logger.warning(
                "%s is open elsewhere too: another trainer or server changes the same weights, and"
                " each sees what the other does; stop one of them unless that is meant",
                path,
            )
        self.lost = opening.lost
        # Replaced as a whole, so that readers need no lock: (newest revision, step in progress).
        self._view: tuple[Record, int] = (record, step)

    @property
    def path(self) -> Path | None:
        return self._log.path

    # -- reading ----------------------------------------------------------------------------------

    def snapshot(self, step: int | None = None) -> WeightSnapshot:
        """The newest revision, with its values at `step`.

        Without `step`: at the step in progress, or, where a change waits for the next one, at that.
        Takes no lock. What another process wrote is seen after `refresh`, and by every `lease`.
        """
        record, running = self._view
        shown = max(running, record.effective_step) if step is None else _as_step(step)
        return snapshot_of(record, shown)

    def newest(self) -> Record:
        """The newest revision, in the form that a checkpoint keeps. Takes no lock."""
        return self._view[0]

    def refresh(self) -> WeightSnapshot:
        """`snapshot`, after a look whether another process has written to the file."""
        with self._lock:
            version = self._log.data_version()
            if version != self._seen:
                self._seen = version
                self._view = (self._newest(), self._view[1])
        return self.snapshot()

    def look(self) -> bool:
        """`refresh`, unless that had to wait for a change that this process is writing; whether
        it was done. For an event loop, which must not wait."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self.refresh()
        finally:
            self._lock.release()
        return True

    def history(self, limit: int | None = None, *, before: int | None = None) -> list[WeightChange]:
        """The audit log, newest first: the newest `limit` entries, or all.

        Args:
            limit: so many at most.
            before: only entries of revisions below this one, to read on where a page ended.
        """
        return [change_of(record, older) for record, older in self._log.records(limit, before)]

    def since(self, revision: int, limit: int) -> list[WeightSnapshot]:
        """This run's revisions after `revision`, oldest first, `limit` at most, each as `snapshot`
        shows it while it is the newest."""
        running = self._view[1]
        records = self._log.after(self.run_id, revision, limit)
        return [snapshot_of(record, max(running, record.effective_step)) for record in records]

    def subscribe(self, observer: Observer) -> None:
        """Call ``observer(before, after)``, two snapshots as dicts, after each written change.

        It runs in the thread that made the change. One that raises is logged and dropped.
        """
        self._observers.append(observer)

    # -- leases -----------------------------------------------------------------------------------

    def lease(self, step: int) -> WeightSnapshot:
        """Fix the revision of `step`, and give its weights.

        The first call decides, for good: a later one for the same step, after a restart too, gets
        the same revision. A mount that the revision did not have yet has its weight of today.

        Raises:
            StoreBusy: another program held the file for longer than `lease_seconds`.
            StoreError: the file is damaged.
        """
        step = _as_step(step)
        return self._log.patiently(lambda: self._lease(step), self._lease_seconds)

    def _lease(self, step: int) -> WeightSnapshot:
        with self._lock:
            with self._log.transaction():
                newest = self._newest()
                revision = self._log.leased(self.run_id, step)
                record = (
                    self._log.in_force(self.run_id, step)
                    if revision is None
                    else self._log.get(revision)
                )
                if record is None:  # a run's first revision is in force from step 0
                    what = f"there is no revision {revision}" if revision else "no revision is"
                    raise self._log.damaged(f"{what} in force at step {step}")
                if revision is None:
                    self._log.lease(self.run_id, step, record.revision)
            self._view = (newest, step)
        return self._shown(record, newest, step)

    def of_group(self, step: int | None) -> tuple[int, int]:
        """The revision that a group is scored under which is leased now, and the step whose values
        it has: `step`, or the one in progress. Part of a transaction of `groups`."""
        newest, running = self._newest(), self._view[1]
        if step is None:
            return newest.revision, max(running, newest.effective_step)
        leased = self._log.leased(self.run_id, _as_step(step))
        if leased is None:
            record = self._log.in_force(self.run_id, step)
            leased = newest.revision if record is None else record.revision
        return leased, step

    def at(self, revision: int, step: int) -> WeightSnapshot:
        """A revision of old, as a lease on it shows it at `step`.

        Raises:
            StoreError: the file has no such revision.
        """
        record = self._log.get(revision)
        if record is None:
            raise self._log.damaged(f"there is no revision {revision}, which a lease names")
        return self._shown(record, self._view[0], step)

    @staticmethod
    def _shown(record: Record, newest: Record, step: int) -> WeightSnapshot:
        """`record` with the mounts of today: one that it did not have yet has its weight of now."""
        dials = {name: record.dials.get(name, dial) for name, dial in newest.dials.items()}
        return snapshot_of(dataclasses.replace(record, dials=dials), step)

    # -- changes ----------------------------------------------------------------------------------

    def update(
        self,
        changes: Mapping[str, object],
        *,
        author: str,
        reason: str | None = None,
        if_revision: int | Collection[int] | None = None,
        replace: bool = False,
    ) -> WeightSnapshot:
        """Pin weights: all that `changes` names, or none.

        Args:
            changes: mount -> new weight.
            author: who makes the change.
            reason: why.
            if_revision: make it only while this revision, or one of these, is the newest.
            replace: `changes` must name every mount.

        Raises:
            WeightError: a name or a value is refused.
            StaleRevision: the newest revision is another.
            ValueError: `author` or `reason` cannot be kept.
        """

        def pin(dials: Dials) -> Dials:
            pins = self._rules.read(changes, dials, whole=replace)
            return {name: Dial(dial.base, pins.get(name, dial.pin)) for name, dial in dials.items()}

        return self._write(pin, author, reason, if_revision)

    def unpin(
        self,
        *names: str,
        author: str,
        reason: str | None = None,
        if_revision: int | Collection[int] | None = None,
    ) -> WeightSnapshot:
        """Clear pins: these weights return to their config's number or schedule.

        Errors as in `update`; a name that is not pinned is refused.
        """

        def clear(dials: Dials) -> Dials:
            cleared = self._rules.pinned(names, dials)
            return {
                name: Dial(dial.base) if name in cleared else dial for name, dial in dials.items()
            }

        return self._write(clear, author, reason, if_revision)

    def rollback(
        self,
        revision: int,
        *,
        author: str,
        reason: str | None = None,
        if_revision: int | Collection[int] | None = None,
    ) -> WeightSnapshot:
        """Make the settings of an old revision, pins and schedules included, a new revision.

        Mounts which that revision did not have keep what they have. Errors as in `update`.
        """

        def back(dials: Dials) -> Dials:
            newest = self._log.newest_revision()
            old = self._log.get(revision) if 1 <= revision <= newest else None
            if old is None:
                first = self._log.after(self.run_id, 0, 1)[0].revision
                known = f"the newest is {newest}, the oldest {first}"
                raise WeightError({"revision": f"there is no {revision!s:.20}, {known}"})
            return {name: old.dials.get(name, dial) for name, dial in dials.items()}

        what = f"rollback to revision {revision}"
        return self._write(back, author, f"{what}: {reason}" if reason else what, if_revision)

    def require(self, check: Check) -> None:
        """Ask `check` as well before a change is taken, and now about the weights that hold, at
        every step to come.

        Raises:
            WeightError: it refuses them.
        """
        with self._lock:
            rules = self._rules.and_also(check)
            record, running = self._view
            rules.judge(record.dials, max(running, record.effective_step))
            self._rules = rules

    def close(self) -> None:
        """Close the file. Snapshots can still be taken."""
        self._leave()
        self._log.close()

    # -- inside -----------------------------------------------------------------------------------

    def _write(
        self,
        edit: Callable[[Dials], Dials],
        author: str,
        reason: str | None,
        if_revision: int | Collection[int] | None,
    ) -> WeightSnapshot:
        author, reason = check_author(author), check_reason(reason)
        with self._lock:
            with self._log.transaction():
                before = self._newest()
                dials = edit(before.dials)
                wanted = (if_revision,) if isinstance(if_revision, int) else if_revision
                if wanted is not None and before.revision not in wanted:
                    raise StaleRevision(wanted, before.revision)
                last = self._log.last_step(self.run_id)
                effective = 0 if last is None else last + 1
                self._rules.judge(dials, effective)
                record = append(self._log, self.run_id, dials, author, reason, effective)
            running = self._view[1]
            self._view = (record, running)
        shown = max(running, effective)
        after = snapshot_of(record, shown)
        self._notify(snapshot_of(before, shown), after)
        return after

    def _newest(self) -> Record:
        newest = self._log.latest(self.run_id)
        assert newest is not None  # written when the store was opened
        return newest

    def _notify(self, before: WeightSnapshot, after: WeightSnapshot) -> None:
        for observer in list(self._observers):
            if not _observed(observer, before, after):
                self._observers = [kept for kept in self._observers if kept is not observer]


def _observed(observer: Observer, before: WeightSnapshot, after: WeightSnapshot) -> bool:
    try:
        observer(before.as_dict(), after.as_dict())
    except Exception:  # somebody else's code; the change is written and stands
        logger.exception("an observer of the weights failed and is not called again")
        return False
    return True


def _as_step(step: int) -> int:
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < _MAX_STEP:
        raise ValueError(f"a step is a whole number from 0 to 2^53, not {step!r}")
    return step
