"""The revisions of a run's weights in SQLite: an append-only log, and which step used which.

One row is one revision, whole: who, when, why, and every weight's setting after it, so that a
change is one atomic write. ``journal_mode=WAL`` with ``synchronous=FULL`` makes a committed
revision survive a kill and a power cut; triggers refuse to change or delete a row. Several
processes may hold the same file: each write sees the others' first (``BEGIN IMMEDIATE``).
"""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from verl_core.rewards.group_leases import GROUP_LEASES
from verl_core.rewards.revisions import Record, dials_form, dials_from
from verl_reward_sdk.errors import ConfigError, VerlRewardError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_APPLICATION_ID = 0x76727764  # "vrwd": tells our file from any other SQLite file
_FORMAT = 1
BUSY_SECONDS = 4.0
"""How long a read or write waits for another program that holds the file: twice this, for those who
wait for one that waits, is less than clients wait for an answer."""
LEASE_SECONDS = 60.0
"""How long a step of the run waits for it: its end would be the end of the run."""
_LARGEST = 2**63 - 1  # of SQLite's integers
_ROOM = 1 << 20  # bytes: with less, the disk is what is wrong
WAY_OUT = (
    "put it back from a copy, or move it away: `train --resume` then goes on with the weights of"
    " the run's checkpoint, and whatever else opens it begins with those of the config"
)
"""What to do about a file that is damaged."""

_SCHEMA = """
CREATE TABLE revisions (
    revision INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    time TEXT NOT NULL,
    author TEXT NOT NULL,
    reason TEXT,
    effective_step INTEGER NOT NULL,
    settings TEXT NOT NULL
);
CREATE TABLE leases (
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    revision INTEGER NOT NULL REFERENCES revisions (revision),
    PRIMARY KEY (run_id, step)
) WITHOUT ROWID;
CREATE TRIGGER revisions_are_final BEFORE UPDATE ON revisions
    BEGIN SELECT RAISE(ABORT, 'a revision never changes'); END;
CREATE TRIGGER revisions_stay BEFORE DELETE ON revisions
    BEGIN SELECT RAISE(ABORT, 'a revision is never deleted'); END;
CREATE TRIGGER leases_are_final BEFORE UPDATE ON leases
    BEGIN SELECT RAISE(ABORT, 'a lease never changes'); END;
CREATE TRIGGER leases_stay BEFORE DELETE ON leases
    BEGIN SELECT RAISE(ABORT, 'a lease is never deleted'); END;
"""


class StoreError(VerlRewardError):
    """The file of the weights could not be read or written. Nothing was changed."""


class StoreBusy(StoreError):
    """Another program held the file for too long. Nothing was changed; it may be tried again."""


def _use_wal(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Switch to WAL mode, as patiently as any other statement waits.

    SQLite's busy timeout does not cover the switch: of two processes that open a new file at the
    same moment, one is told at once that it is locked.
    """
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class RevisionLog:
    """The SQLite file behind a `WeightStore`; in memory where `path` is None.

    Every method may be called from any thread; a lock admits one at a time.

    Args:
        path: the file.
        busy_seconds: how long one read or write waits for another program that holds the file.

    Raises:
        ConfigError: the file cannot be opened, or is not a file of this kind.
        StoreError: a later read or write failed; the transaction was rolled back. `StoreBusy`
            where another program held the file.
    """

    def __init__(self, path: Path | None, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        self._lock = threading.RLock()
        name = ":memory:" if path is None else str(path)
        connection: sqlite3.Connection | None = None
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                name, timeout=busy_seconds, isolation_level=None, check_same_thread=False
            )
            self._prepare(connection)
        except (sqlite3.Error, OSError) as error:
            if connection is not None:
                connection.close()
            raise self._unopened(error) from error
        except ConfigError:
            if connection is not None:
                connection.close()
            raise
        self._connection = connection
        self._close = weakref.finalize(self, connection.close)  # also of a log nobody closed

    def _unopened(self, error: Exception) -> ConfigError:
        if _is_busy(error):
            return ConfigError(
                f"cannot keep the weights in it: another program holds it, and did for "
                f"{self._busy_seconds:g} s ({error})",
                file=self.path,
                hint="wait for that program or end it (`fuser` names it), and start again",
            )
        if "full" in str(error) or not _has_room(self.path):
            return ConfigError(
                f"cannot keep the weights in it: {error}",
                file=self.path,
                hint="make room on its disk, or choose another folder",
            )
        return ConfigError(
            f"cannot keep the weights in it: {error}",
            file=self.path,
            hint="it must be a file that verl-reward wrote, in a folder that may be written"
            + (f"; {WAY_OUT}" if _is_damage(error) else ""),
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        _use_wal(connection, self._busy_seconds)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            (found,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables == 0:
                for statement in _statements(_SCHEMA):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
            elif found != _APPLICATION_ID:
                raise ConfigError(
                    "it is a database of some other program",
                    file=self.path,
                    hint="choose another folder, or move the file away",
                )
            elif version != _FORMAT:
                raise ConfigError(
                    f"its format is {version}, this verl-reward reads {_FORMAT}",
                    file=self.path,
                    hint="use the verl-reward that wrote it",
                )
            for statement in _statements(GROUP_LEASES):  # what files of before do not have
                connection.execute(statement)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All reads and writes inside see and make one change, or none at all."""
        with self._lock, self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def patiently(self, work: Callable[[], T], seconds: float) -> T:
        """What `work` gives, which is done again while another program holds the file.

        Between two tries others may use this log. The first wait is logged.

        Raises:
            StoreBusy: the file was held for `seconds`.
        """
        deadline = time.monotonic() + seconds
        told = False
        while True:
            try:
                return work()
            except StoreBusy as error:
                if time.monotonic() >= deadline:
                    raise
                if not told:
                    logger.warning("%s; the run waits for it, %g s at most", error, seconds)
                told = True
                time.sleep(0.01)  # a lock is not fair: let those who wait for this log have it

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:  # the latter: a number beyond 64 bits
            where = self._where
            if _is_busy(error):
                raise StoreBusy(
                    f"another program holds {where}, and did for {self._busy_seconds:g} s: {error};"
                    " nothing was changed"
                ) from error
            raise StoreError(
                f"the weights in {where} could not be read or written: {error}; nothing was changed"
                + (f"; {WAY_OUT}" if _is_damage(error) else "")
            ) from error

    @property
    def _where(self) -> str:
        return "memory" if self.path is None else str(self.path)

    def damaged(self, what: str) -> StoreError:
        """The error that says `what` the file holds, which it cannot have been given, and what to
        do."""
        return StoreError(f"the weights in {self._where} are damaged: {what}; {WAY_OUT}")

    def _whole(self, value: object, what: str) -> int:
        if isinstance(value, int):
            return value
        raise self.damaged(f"{what} is {value!a:.80}")

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """What one statement gives."""
        with self._lock, self._translated():
            return self._connection.execute(sql, values).fetchall()

    def data_version(self) -> int:
        """Changes when another connection, of this process or any other, has written."""
        return int(self.rows("PRAGMA data_version")[0][0])

    def append(self, record: Record) -> None:
        """Write `record`, inside a `transaction`."""
        self.rows(
            "INSERT INTO revisions VALUES (?, ?, ?, ?, ?, ?, ?)",
            record.revision,
            record.run_id,
            record.time,
            record.author,
            record.reason,
            record.effective_step,
            json.dumps(dials_form(record.dials), allow_nan=False),
        )

    def newest_revision(self) -> int:
        """The highest revision number of any run in the file; 0 where there is none."""
        return int(self.rows("SELECT coalesce(max(revision), 0) FROM revisions")[0][0])

    def newest_run(self) -> str | None:
        """The run that wrote the newest revision."""
        rows = self.rows("SELECT run_id FROM revisions ORDER BY revision DESC LIMIT 1")
        return str(rows[0][0]) if rows else None

    def latest(self, run_id: str) -> Record | None:
        return self._record("WHERE run_id = ? ORDER BY revision DESC LIMIT 1", run_id)

    def get(self, revision: int) -> Record | None:
        return self._record("WHERE revision = ?", revision)

    def in_force(self, run_id: str, step: int) -> Record | None:
        """The newest revision of the run that may be used at `step`."""
        return self._record(
            "WHERE run_id = ? AND effective_step <= ? ORDER BY revision DESC LIMIT 1", run_id, step
        )

    def _record(self, clause: str, *values: Any) -> Record | None:
        rows = self.rows(f"SELECT * FROM revisions {clause}", *values)
        return self._as_record(rows[0]) if rows else None

    def records(
        self, limit: int | None, below: int | None = None
    ) -> list[tuple[Record, Record | None]]:
        """The newest `limit` revisions (None: all), newest first, each with its predecessor.

        Args:
            below: only those before this one.
        """
        rows = self.rows(
            "SELECT *, (SELECT max(older.revision) FROM revisions AS older"
            " WHERE older.run_id = revisions.run_id AND older.revision < revisions.revision)"
            " FROM revisions WHERE revision < ? ORDER BY revision DESC LIMIT ?",
            _LARGEST if below is None else below,
            -1 if limit is None else limit,
        )
        return [
            (self._as_record(row[:-1]), None if row[-1] is None else self.get(row[-1]))
            for row in rows
        ]

    def after(self, run_id: str, revision: int, limit: int) -> list[Record]:
        """The oldest `limit` revisions of the run that are newer than `revision`, oldest first."""
        rows = self.rows(
            "SELECT * FROM revisions WHERE run_id = ? AND revision > ? ORDER BY revision LIMIT ?",
            run_id,
            revision,
            limit,
        )
        return [self._as_record(row) for row in rows]

    def leased(self, run_id: str, step: int) -> int | None:
        """The revision that the run fixed for `step`."""
        rows = self.rows("SELECT revision FROM leases WHERE run_id = ? AND step = ?", run_id, step)
        return self._whole(rows[0][0], f"the revision of step {step}") if rows else None

    def lease(self, run_id: str, step: int, revision: int) -> None:
        """Fix `revision` for `step`, inside a `transaction`."""
        self.rows("INSERT INTO leases VALUES (?, ?, ?)", run_id, step, revision)

    def last_step(self, run_id: str) -> int | None:
        """The highest step that the run has leased."""
        rows = self.rows("SELECT max(step) FROM leases WHERE run_id = ?", run_id)
        return None if rows[0][0] is None else self._whole(rows[0][0], "a step")

    def _as_record(self, row: tuple[Any, ...]) -> Record:
        try:
            revision, run_id, time, author, reason, effective, settings = row
            dials = dials_from(json.loads(settings))
            return Record(revision, run_id, time, author, reason, effective, dials)
        except (TypeError, ValueError, RecursionError) as error:
            what = f"revision {row[0]!a:.80} holds what is no weight: {error}"
            raise self.damaged(what) from error

    def close(self) -> None:
        with self._lock:
            self._close()


def newest_run(path: Path) -> str | None:
    """The run that wrote last to the file at `path`; None where there is no such file.

    Raises:
        ConfigError: as in `RevisionLog`.
    """
    if not path.exists():
        return None
    log = RevisionLog(path)
    try:
        return log.newest_run()
    finally:
        log.close()


def _is_damage(error: Exception) -> bool:
    """Whether the file is to blame. What SQLite calls an operational error is of the system (the
    folder, the rights, the disk), but for a table or column that is gone."""
    if isinstance(error, sqlite3.OperationalError):
        return "no such" in str(error)
    return isinstance(error, sqlite3.DatabaseError | OverflowError)


def _has_room(path: Path | None) -> bool:
    """SQLite says "disk I/O error" of some full disks, where its log cannot grow."""
    try:
        return path is None or shutil.disk_usage(path.parent).free >= _ROOM
    except OSError:
        return True


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one (`executescript` would end the transaction)."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
