"""Cached rows in memory: the least recently used one goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from verl_core.rewards.cache.rows import CachedRow


class MemoryStore:
    """Key -> row, at most `rows` of them. Every method may be called from any thread."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._kept: OrderedDict[bytes, CachedRow] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, keys: Iterable[bytes]) -> dict[bytes, CachedRow]:
        """The rows that are there."""
        found = {}
        with self._lock:
            for key in keys:
                row = self._kept.get(key)
                if row is not None:
                    self._kept.move_to_end(key)
                    found[key] = row
        return found

    def put(self, rows: Mapping[bytes, CachedRow]) -> None:
        """Keep `rows`; what goes beyond the bound is dropped, the longest unused first."""
        with self._lock:
            for key, row in rows.items():
                self._kept[key] = row
                self._kept.move_to_end(key)
                if len(self._kept) > self._rows:
                    self._kept.popitem(last=False)

    def close(self) -> None:
        """Let go of all rows."""
        with self._lock:
            self._kept.clear()
