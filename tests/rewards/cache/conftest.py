"""Rows, answers and caches for the tests of cached scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl_core.rewards.answer import Answer
from verl_core.rewards.cache import RowCache
from verl_core.rewards.statuses import OK
from verl_reward_sdk.batch import RewardBatch

SCOPE = b"scope"


def batch(*responses: str, **fields: Any) -> RewardBatch:
    defaults: dict[str, Any] = {
        "sample_ids": [f"s{i}" for i in range(len(responses))],
        "prompts": ["question"] * len(responses),
    }
    return RewardBatch(responses=responses, **{**defaults, **fields})


def answer(scores: Sequence[float], codes: Sequence[int] | None = None, **fields: Any) -> Answer:
    """Of rows that are all scored, unless `codes` says otherwise."""
    return Answer(
        np.array(scores, dtype=np.float64),
        np.array(codes or [OK] * len(scores), dtype=np.int8),
        **fields,
    )


def score_all(cache: RowCache, rows: RewardBatch, score: Callable[[str], float]) -> Answer:
    """As a mount would: look up, ask about the rest, keep, join."""
    split = cache.split(rows, SCOPE)
    fresh = None
    if len(split.ask):
        asked = rows.take(split.ask.tolist())
        fresh = answer([score(text) for text in asked.responses])
        cache.put(split, fresh)
    return split.joined(fresh)[0]


def numbered(start: int, stop: int) -> RewardBatch:
    return batch(*(f"answer {i}" for i in range(start, stop)))


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Caches in memory, or on one file; closed when the test ends."""
    made: list[RowCache] = []

    def build(rows: int = 1000) -> RowCache:
        path = tmp_path / "cache" / "scores.db" if request.param == "sqlite" else None
        made.append(RowCache(rows, path))
        return made[-1]

    yield build
    for cache in made:
        cache.close()
