"""Cached rows in a SQLite file that several processes may use at once.

``journal_mode=WAL``: a kill at any moment leaves whole transactions. A row carries a digest of its
content. The file is a convenience: once it is open, nothing that goes wrong with it ends a run. One
that is damaged is moved aside and a new one begun; one that is locked, full or gone for the moment
answers nothing and keeps nothing. It belongs on a local disk: WAL needs memory that all its
processes share.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from verl_core.rewards.cache.keys import FORMAT
from verl_core.rewards.cache.rows import CachedRow, pack, unpack
from verl_reward_sdk.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_APPLICATION_ID = 0x76727763  # "vrwc"
_BUSY_SECONDS = 2.0
_OPEN_SECONDS = 10.0
_TOUCH_MS = 60_000  # a row's use is noted anew after this: reading seldom writes
_PARAMETERS = 500  # in one statement

_SCHEMA = (
    "CREATE TABLE rows (key BLOB PRIMARY KEY, used INTEGER NOT NULL, value BLOB NOT NULL,"
    " tokens BLOB, digest BLOB NOT NULL) WITHOUT ROWID",
    "CREATE INDEX by_use ON rows (used)",
    "CREATE TABLE size (n INTEGER NOT NULL)",
    "INSERT INTO size VALUES (0)",
    "CREATE TRIGGER one_more AFTER INSERT ON rows BEGIN UPDATE size SET n = n + 1; END",
    "CREATE TRIGGER one_less AFTER DELETE ON rows BEGIN UPDATE size SET n = n - 1; END",
)


class SqliteStore:
    """Key -> row in a file, at most `rows` of them after every write of any process.

    Every method may be called from any thread. The longest unused rows are dropped first, a
    twentieth of the bound at once; a row's use is noted to the minute. Of processes with different
    bounds the one that writes holds its own.

    Args:
        path: the file; its folder is made.
        rows: the bound.

    Raises:
        ConfigError: the file cannot be opened, or belongs to another program.
    """

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self._rows = rows
        self._lock = threading.RLock()
        self._warned: set[str] = set()
        self._inode: int | None = None
        self._close: Callable[[], object] = lambda: None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(path):
                self._open_or_replace()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"cannot keep cached scores in it: {error}",
                file=path,
                hint="name a file in a folder of a local disk that may be written",
            ) from error

    # -- rows --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._guarded("counted", self._count, 0)

    def get(self, keys: Iterable[bytes]) -> dict[bytes, CachedRow]:
        """The rows that are there."""
        wanted = list(dict.fromkeys(keys))
        return self._guarded("read", lambda: self._read(wanted), {})

    def put(self, rows: Mapping[bytes, CachedRow]) -> None:
        """Keep `rows`; what goes beyond the bound is dropped, the longest unused first."""
        if rows:
            packed = [(key, *pack(key, row)) for key, row in rows.items()]
            self._guarded("written", lambda: self._write(packed), None)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._close()

    def _count(self) -> int:
        return int(self._connection.execute("SELECT n FROM size").fetchone()[0])

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, CachedRow]:
        found: dict[bytes, CachedRow] = {}
        stale: list[bytes] = []
        broken: list[bytes] = []
        now = _now()
        for some in _slices(keys, _PARAMETERS):
            places = ",".join("?" * len(some))
            sql = f"SELECT key, used, value, tokens, digest FROM rows WHERE key IN ({places})"
            for key, used, *content in self._connection.execute(sql, some):
                row = unpack(key, *content)
                if row is None:
                    broken.append(key)
                    continue
                found[key] = row
                if used < now - _TOUCH_MS:
                    stale.append(key)
        if broken:
            self._warn("damaged rows", f"{len(broken)} rows are not what was written: asked anew")
        if stale or broken:
            with self._transaction():
                self._connection.executemany(
                    "UPDATE rows SET used = ? WHERE key = ?", [(now, key) for key in stale]
                )
                self._connection.executemany(
                    "DELETE FROM rows WHERE key = ?", [(key,) for key in broken]
                )
        return found

    def _write(self, rows: Sequence[tuple[bytes, bytes, bytes | None, bytes]]) -> None:
        now = _now()
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO rows VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
                " used = excluded.used, value = excluded.value, tokens = excluded.tokens,"
                " digest = excluded.digest",
                [(key, now, value, tokens, digest) for key, value, tokens, digest in rows],
            )
            count = self._count()
            if count > self._rows:
                self._connection.execute(
                    "DELETE FROM rows WHERE key IN (SELECT key FROM rows ORDER BY used LIMIT ?)",
                    (count - self._rows + self._rows // 20,),
                )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):  # the first error is the one to tell of
                    self._connection.execute("ROLLBACK")
            raise

    # -- trouble -----------------------------------------------------------------------------------

    def _guarded(self, what: str, action: Callable[[], T], otherwise: T) -> T:
        """What `action` gives, or `otherwise` where the file does not allow it."""
        with self._lock:
            try:
                return action()
            except (sqlite3.Error, OSError) as error:
                try:
                    if _is_damage(error):
                        self._begin_anew(error)
                    else:
                        self._warn(str(error), f"it could not be {what} ({error}): scored anew")
                except (sqlite3.Error, OSError, ConfigError) as worse:
                    self._warn(str(worse), f"it can no longer be used ({worse}): scored anew")
            return otherwise

    def _begin_anew(self, error: Exception) -> None:
        """Reopen the path: as another process has replaced it, or with a new file."""
        self._close()
        with _alone(self.path):
            if _inode(self.path) == self._inode:
                self._move_aside(error)
            self._open_or_replace()

    def _open_or_replace(self) -> None:
        try:
            self._connect()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._move_aside(error)
            self._connect()

    def _move_aside(self, error: Exception) -> None:
        """Under the file's lock: nobody opens the file meanwhile."""
        aside = self.path.with_name(f"{self.path.name}.damaged")
        # The log first: beside a new file it would be taken for that one's.
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        logger.warning(
            "the cached scores in %s are damaged (%s): moved to %s, and begun anew",
            self.path,
            error,
            aside,
        )

    def _warn(self, kind: str, text: str) -> None:
        """Once a kind: a full disk is full at every step."""
        if kind not in self._warned and len(self._warned) < 20:
            self._warned.add(kind)
            logger.warning("cached scores in %s: %s", self.path, text)

    # -- opening -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        connection = sqlite3.connect(
            self.path, timeout=_OPEN_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._inode = _inode(self.path)
        self._close = weakref.finalize(self, connection.close)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (found,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and found != _APPLICATION_ID:
            raise ConfigError(
                "it is a database of some other program",
                file=self.path,
                hint="give the cached scores a file of their own",
            )
        if tables and version != FORMAT:
            raise ConfigError(
                f"its format is {version}, this verl-reward reads {FORMAT}",
                file=self.path,
                hint="use the verl-reward that wrote it, or delete the file: it is only a cache",
            )
        connection.execute("PRAGMA journal_mode = WAL")  # alone with it, under its lock
        connection.execute("PRAGMA synchronous = NORMAL")
        if not tables:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
        connection.execute("SELECT n FROM size").fetchone()
        connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")


def _is_damage(error: Exception) -> bool:
    """SQLITE_CORRUPT and SQLITE_NOTADB; locked, full, read-only and the like are subclasses."""
    return type(error) is sqlite3.DatabaseError


def _now() -> int:
    return time.time_ns() // 1_000_000


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _slices(keys: Sequence[bytes], size: int) -> Iterator[list[bytes]]:
    rest = iter(keys)
    while some := list(islice(rest, size)):
        yield some


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time opens or replaces `path`; a killed one lets go.

    The lock is on a file of its own (``.lock``), which stays: whoever would delete it could give
    two processes a lock each. One that is held for too long, as by a stopped process, is an error.
    """
    try:
        import fcntl
    except ImportError:  # not POSIX: an open file cannot be moved there anyway
        yield
        return
    name = path.with_name(f"{path.name}.lock")
    handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        end = time.monotonic() + _OPEN_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"another process has held {name} for {_OPEN_SECONDS:.0f} s"
                    ) from None
                time.sleep(0.01)
        yield
    finally:
        os.close(handle)
