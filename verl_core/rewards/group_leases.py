"""Which revision each group is scored under, for workers of other trainers: rows of ``weights.db``.

The first who asks for a group decides its revision and step, for good: a trigger refuses to change
them. A lease on the group lives until it is ended, or was not used for long; the group may then be
leased anew, under the same revision. Times are seconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_core.rewards.persistence import RevisionLog

GROUP_LEASES = """
CREATE TABLE IF NOT EXISTS group_leases (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    name TEXT NOT NULL,
    revision INTEGER NOT NULL REFERENCES revisions (revision),
    step INTEGER NOT NULL,
    generations TEXT NOT NULL,
    used REAL NOT NULL,
    ended TEXT
);
CREATE INDEX IF NOT EXISTS group_leases_by_name ON group_leases (run_id, name);
CREATE TRIGGER IF NOT EXISTS group_leases_are_final
    BEFORE UPDATE OF number, id, run_id, name, revision, step, generations ON group_leases
    BEGIN SELECT RAISE(ABORT, 'a group lease never changes'); END;
CREATE TRIGGER IF NOT EXISTS group_leases_stay BEFORE DELETE ON group_leases
    BEGIN SELECT RAISE(ABORT, 'a group lease is never deleted'); END;
"""

_COLUMNS = "id, name, revision, step, generations, used, ended"


@dataclass(frozen=True)
class GroupRow:
    """One lease of one group.

    Args:
        id: names it.
        name: of the group.
        revision, step: of the weights, and whose scheduled values they have.
        generations: mount -> generation, as whoever gave it had them.
        contents: mount -> what that generation is made of (`Lease.contents`); a mount of which that
            is not known is left out.
        used: when it was used last.
        ended: why it has ended, or None.
    """

    id: str
    name: str
    revision: int
    step: int
    generations: Mapping[str, int]
    used: float
    ended: str | None = None
    contents: Mapping[str, str] = field(default_factory=dict)


class GroupLeases:
    """The group leases of one run in its file.

    Errors as in `RevisionLog`; also `StoreError` for rows that were never written so.
    """

    def __init__(self, log: RevisionLog, run_id: str) -> None:
        self._log, self._run_id = log, run_id

    def get(self, lease_id: str) -> GroupRow | None:
        """The lease of that id."""
        return self._one("id = ?", lease_id)

    def newest(self, name: str) -> GroupRow | None:
        """The lease that was given last on a group."""
        return self._one("name = ?", name)

    def give(
        self,
        name: str,
        lives: Callable[[GroupRow], bool],
        fixed: Callable[[], tuple[int, int]],
        make: Callable[[int, int], GroupRow],
    ) -> tuple[GroupRow, bool]:
        """The lease on a group, and whether it is new, as one change of the file.

        Args:
            name: of the group.
            lives: whether its last lease still does; that one is given then.
            fixed: the revision and step of a group that was never leased.
            make: a new lease under a revision, at a step.
        """
        with self._log.transaction():
            last = self.newest(name)
            if last is not None and lives(last):
                return last, False
            row = make(*((last.revision, last.step) if last else fixed()))
            self._add(row)
            return row, True

    def _add(self, row: GroupRow) -> None:
        self._log.rows(
            f"INSERT INTO group_leases (run_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            self._run_id,
            row.id,
            row.name,
            row.revision,
            row.step,
            json.dumps(_written(row)),
            row.used,
            row.ended,
        )

    def living(self, since: float) -> list[GroupRow]:
        """The leases that have not ended and were used after `since`, in the order given."""
        rows = self._log.rows(
            f"SELECT {_COLUMNS} FROM group_leases WHERE run_id = ? AND ended IS NULL AND used > ?"
            " ORDER BY number",
            self._run_id,
            since,
        )
        return [self._row(row) for row in rows]

    def touch(self, lease_id: str, used: float) -> None:
        """Note a use; the latest counts, whoever writes last."""
        self._log.rows(
            "UPDATE group_leases SET used = ? WHERE run_id = ? AND id = ? AND used < ?",
            used,
            self._run_id,
            lease_id,
            used,
        )

    def end(self, lease_id: str, why: str) -> None:
        """End a lease; of one that has ended the first reason stands."""
        self._log.rows(
            "UPDATE group_leases SET ended = ? WHERE run_id = ? AND id = ? AND ended IS NULL",
            why,
            self._run_id,
            lease_id,
        )

    def _one(self, condition: str, value: str) -> GroupRow | None:
        rows = self._log.rows(
            f"SELECT {_COLUMNS} FROM group_leases WHERE run_id = ? AND {condition}"
            " ORDER BY number DESC LIMIT 1",
            self._run_id,
            value,
        )
        return self._row(rows[0]) if rows else None

    def _row(self, values: tuple[Any, ...]) -> GroupRow:
        lease_id, name, revision, step, text, used, ended = values
        try:
            numbers, contents = _read(json.loads(text))
            step, revision = int(step), int(revision)
            return GroupRow(lease_id, name, revision, step, numbers, used, ended, contents)
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise self._log.damaged(f"the lease {lease_id!a:.80}: {error}") from error


def _written(row: GroupRow) -> dict[str, Any]:
    """Mount -> number, or ``[number, content]`` where that is known."""
    return {
        name: [number, row.contents[name]] if name in row.contents else number
        for name, number in row.generations.items()
    }


def _read(written: dict[str, Any]) -> tuple[dict[str, int], dict[str, str]]:
    numbers, contents = {}, {}
    for name, value in written.items():
        if isinstance(value, list):
            value, contents[name] = value
        numbers[name] = int(value)
    return numbers, contents
