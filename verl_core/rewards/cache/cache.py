"""A batch, parted into rows whose answer is known and rows to ask about, and joined again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from verl_core.rewards.answer import Answer
from verl_core.rewards.cache.keys import row_keys
from verl_core.rewards.cache.memory import MemoryStore
from verl_core.rewards.cache.rows import CachedRow
from verl_core.rewards.cache.sqlite import SqliteStore
from verl_core.rewards.statuses import OK
from verl_core.rewards.tokens import TokenRow
from verl_reward_sdk.batch import RewardBatch

Ints = npt.NDArray[np.int64]
TokenRows = Sequence[TokenRow]


class _Store(Protocol):
    def __len__(self) -> int: ...
    def get(self, keys: Sequence[bytes]) -> dict[bytes, CachedRow]: ...
    def put(self, rows: dict[bytes, CachedRow]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Split:
    """What is known of a batch of n rows.

    Args:
        keys: n keys, None for a row that cannot be keyed.
        known: row -> what the cache has for it.
        ask: (m,) int64: the rows to ask the provider about, in order. Of rows of one content only
            the first stands here.
        source: (n,) int64: which of the m answers is the row's; -1 where it is known.
    """

    keys: Sequence[bytes | None]
    known: dict[int, CachedRow]
    ask: Ints
    source: Ints

    @property
    def hits(self) -> int:
        """Rows that the provider need not be asked about."""
        return len(self.keys) - len(self.ask)

    @property
    def hit_rate(self) -> float:
        """Their share of the batch; 0.0 of an empty one."""
        return self.hits / len(self.keys) if self.keys else 0.0

    def joined(
        self, fresh: Answer | None, tokens: TokenRows | None = None
    ) -> tuple[Answer, list[TokenRow] | None]:
        """The known rows and the `fresh` answer about the m asked ones, as one of n rows.

        Args:
            fresh: None where nothing had to be asked.
            tokens: m rows of token scores, if the provider gave some.

        Returns:
            The answer, and n rows of token scores (None where no row has any). Extras that a row
            was not given are NaN.
        """
        n = len(self.keys)
        answer = Answer(np.full(n, np.nan), np.full(n, OK, dtype=np.int8))
        all_tokens: list[TokenRow] = [None] * n
        if fresh is not None:
            self._spread(fresh, answer)
            if tokens is not None:
                for row in np.flatnonzero(self.source >= 0).tolist():
                    all_tokens[row] = tokens[self.source[row]]
        words = np.zeros(n, dtype=np.int8) if answer.words is None else answer.words
        extras = dict(answer.extras)
        for row, kept in self.known.items():
            answer.scores[row] = kept.score
            if kept.word is not None:
                words[row] = kept.word
                answer.words = words
            if kept.reason is not None:
                answer.reasons[row] = kept.reason
            for name, value in kept.extras:
                if name not in extras:
                    extras[name] = np.full(n, np.nan)
                extras[name][row] = value
            all_tokens[row] = kept.tokens
        answer.extras = extras
        has_tokens = any(row is not None for row in all_tokens)
        return answer, all_tokens if has_tokens else None

    def _spread(self, fresh: Answer, answer: Answer) -> None:
        rows = np.flatnonzero(self.source >= 0)
        pick = self.source[rows]
        answer.scores[rows] = fresh.scores[pick]
        answer.codes[rows] = fresh.codes[pick]
        if fresh.words is not None:
            answer.words = np.zeros(len(self.keys), dtype=np.int8)
            answer.words[rows] = fresh.words[pick]
        if fresh.reasons:
            for row, place in zip(rows.tolist(), pick.tolist(), strict=True):
                if place in fresh.reasons:
                    answer.reasons[row] = fresh.reasons[place]
        extras = {}
        for name, values in fresh.extras.items():
            extras[name] = np.full(len(self.keys), np.nan)
            extras[name][rows] = values[pick]
        answer.extras = extras
        answer.seconds, answer.error = fresh.seconds, fresh.error


@dataclass(frozen=True)
class CacheFigures:
    """What a cache did so far.

    Args:
        rows: that were looked up.
        hits: of them, rows that nobody had to be asked about.
        unkeyed: rows with a value that cannot be keyed.
        kept: rows in it now.
    """

    rows: int
    hits: int
    unkeyed: int
    kept: int


class RowCache:
    """The scores of one mount, or of several: rows of different scopes never meet.

    Every method may be called from any thread.

    Args:
        rows: at most so many are kept, the longest unused go first.
        path: a SQLite file, which other processes may use too; None: in memory.

    Raises:
        ConfigError: the file cannot be opened, or belongs to another program.
    """

    def __init__(self, rows: int, path: Path | None = None) -> None:
        self._store: _Store = MemoryStore(rows) if path is None else SqliteStore(path, rows)
        self._lock = threading.Lock()
        self._rows = self._hits = self._unkeyed = 0

    def split(self, batch: RewardBatch, scope: bytes, *, tokens: bool = False) -> Split:
        """Look all rows of a batch up.

        Of rows of one content within the batch only the first is to be asked about, as if they had
        come one after the other.

        Args:
            batch: what the provider would be asked, with the columns that it sees.
            scope: of `cache_scope`, for the generation that would be asked.
            tokens: the provider gives token scores.
        """
        keys = row_keys(batch, scope, tokens=tokens)
        found = self._store.get([key for key in keys if key is not None])
        known: dict[int, CachedRow] = {}
        ask: list[int] = []
        first: dict[bytes, int] = {}
        source = np.full(len(keys), -1, dtype=np.int64)
        for row, key in enumerate(keys):
            if key is not None and key in found:
                known[row] = found[key]
            elif key is not None and key in first:
                source[row] = first[key]
            else:
                source[row] = len(ask)
                if key is not None:
                    first[key] = len(ask)
                ask.append(row)
        result = Split(keys, known, np.array(ask, dtype=np.int64), source)
        with self._lock:
            self._rows += len(keys)
            self._hits += result.hits
            self._unkeyed += keys.count(None)
        return result

    def put(self, split: Split, fresh: Answer, tokens: TokenRows | None = None) -> None:
        """Keep the scored rows of the answer about the rows that `split` had to ask.

        Args:
            fresh: m rows, checked.
            tokens: m rows of checked token scores, if the provider gave some.
        """
        rows: dict[bytes, CachedRow] = {}
        for place in np.flatnonzero(fresh.ok).tolist():
            key = split.keys[split.ask[place]]
            if key is not None:
                rows[key] = CachedRow(
                    score=float(fresh.scores[place]),
                    word=None if fresh.words is None else int(fresh.words[place]),
                    reason=fresh.reasons.get(place),
                    extras=tuple((name, float(c[place])) for name, c in fresh.extras.items()),
                    tokens=None if tokens is None else tokens[place],
                )
        self._store.put(rows)

    def figures(self) -> CacheFigures:
        """What it did so far."""
        with self._lock:
            return CacheFigures(self._rows, self._hits, self._unkeyed, len(self._store))

    def close(self) -> None:
        """Close its file, or let go of its rows."""
        self._store.close()
