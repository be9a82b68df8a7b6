"""What a cached score costs: microseconds a row to look it up, found and not found.

The peer is the plainest cache there is, a dict whose key is the JSON of the row: it tells fewer
contents apart, has no bound and no file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from figures import Figure, show, warn_if_busy

from verl_core.rewards.answer import Answer
from verl_core.rewards.cache import RowCache
from verl_reward_sdk import RewardBatch

SCOPE = b"benchmark"


def batch(rows: int, start: int) -> RewardBatch:
    """Rows of a plausible size: groups of 8, a response of about 64 tokens, two columns."""
    texts = [f"answer {start + i}: " + "the parcel comes on Monday. " * 9 for i in range(rows)]
    prompts = [[{"role": "user", "content": f"question {i // 8}?"}] for i in range(0, rows, 8)]
    return RewardBatch(
        sample_ids=[str(i) for i in range(rows)],
        prompts=[prompts[i // 8] for i in range(rows)],
        responses=texts,
        columns={
            "ground_truth": ["on Monday"] * rows,
            "extra_info": [{"index": i} for i in range(rows)],
        },
    )


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def ours(cache: RowCache, known: RewardBatch, new: RewardBatch) -> tuple[float, float]:
    """Seconds of a batch that is known, joined, and of one that is not, put and joined."""

    def score(rows: RewardBatch) -> None:
        split = cache.split(rows, SCOPE)
        fresh = None
        if len(split.ask):
            fresh = Answer(np.ones(len(split.ask)), np.zeros(len(split.ask), dtype=np.int8))
            cache.put(split, fresh)
        split.joined(fresh)

    return seconds(lambda: score(known)), seconds(lambda: score(new))


def plain(kept: dict[str, float], rows: RewardBatch) -> None:
    for i in range(len(rows)):
        content = [rows.prompts[i], rows.responses[i], rows.columns["ground_truth"][i]]
        kept.setdefault(json.dumps([*content, rows.columns["extra_info"][i]]), 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1024, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=20, help="batches; the median counts")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    options = parser.parse_args()
    warn_if_busy()
    known = batch(options.rows, 0)
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"memory": RowCache(100_000), "SQLite": RowCache(100_000, Path(folder) / "c.db")}
        kept: dict[str, float] = {}
        plain(kept, known)
        for cache in caches.values():
            ours(cache, known, known)
        for turn in range(1, options.rounds + 1):
            new = batch(options.rows, turn * options.rows)
            taken.setdefault("plain hit", []).append(seconds(lambda: plain(kept, known)))
            taken.setdefault("plain miss", []).append(seconds(lambda new=new: plain(kept, new)))
            for name, cache in caches.items():
                hit, miss = ours(cache, known, new)
                taken.setdefault(f"{name} hit", []).append(hit)
                taken.setdefault(f"{name} miss", []).append(miss)
        for cache in caches.values():
            cache.close()
    cost = {name: float(np.median(times)) / options.rows * 1e6 for name, times in taken.items()}
    figures = [
        Figure(f"{where} {what}", cost[f"{where} {what}"], cost[f"plain {what}"], "µs a row")
        for where in caches
        for what in ("hit", "miss")
    ]
    show("cached scores", figures, as_json=options.json)


if __name__ == "__main__":
    main()
