"""Cached scores stay within their bound, whoever fills them."""

from __future__ import annotations

import resource
import sqlite3
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rewards.cache.conftest import SCOPE, batch, numbered, score_all
from verl_core.rewards.cache import RowCache


@pytest.mark.parametrize("bound", [1, 7, 100])
def test_the_bound_holds_after_every_batch(make: Any, bound: int) -> None:
    cache = make(bound)
    for start in range(0, 400, 40):
        score_all(cache, numbered(start, start + 40), lambda text: 1.0)
        assert 0 < cache.figures().kept <= bound


def test_memory_drops_the_longest_unused_row() -> None:
    cache = RowCache(2)
    for texts in (["a"], ["b"], ["a"], ["c"]):
        score_all(cache, batch(*texts), lambda text: 1.0)
    assert cache.split(batch("a", "b", "c"), SCOPE).ask.tolist() == [1]


def test_a_file_drops_the_longest_unused_rows(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    cache = RowCache(100, path)
    score_all(cache, numbered(0, 100), lambda text: 1.0)
    with sqlite3.connect(path) as other:  # all but the last ten were used long ago
        other.execute("UPDATE rows SET used = 1000")
    other.close()
    assert len(cache.split(numbered(90, 100), SCOPE).ask) == 0
    score_all(cache, numbered(100, 150), lambda text: 1.0)
    assert len(cache.split(numbered(90, 150), SCOPE).ask) == 0
    assert cache.figures().kept == 95
    cache.close()


def test_memory_stays_flat_once_the_bound_is_reached() -> None:
    cache = RowCache(500)
    for turn in range(20):
        score_all(cache, numbered(turn * 100, turn * 100 + 100), lambda text: 1.0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for turn in range(20, 220):
            score_all(cache, numbered(turn * 100, turn * 100 + 100), lambda text: 1.0)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 500 * 1000  # the 500 rows are new ones, and were not traced before


def test_a_files_size_stays_flat_once_the_bound_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    cache = RowCache(500, path)

    def fill(turns: range) -> int:
        for turn in turns:
            score_all(cache, numbered(turn * 100, turn * 100 + 100), lambda text: 1.0)
        return sum(file.stat().st_size for file in tmp_path.iterdir())

    early = fill(range(60))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert fill(range(60, 260)) < 1.5 * early
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + 20_000  # KiB
    cache.close()


def test_threads_may_share_a_cache(make: Any) -> None:
    cache, wrong = make(50), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            picked = rng.integers(0, 80, size=20).tolist()
            got = score_all(cache, batch(*map(str, picked)), float)
            if got.scores.tolist() != [float(i) for i in picked]:
                wrong.append(picked)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.figures().rows == 4 * 30 * 20
    assert cache.figures().kept <= 50
