"""A long run of the engine: nothing grows with the number of batches."""

from __future__ import annotations

import gc

import psutil
import pytest

BATCHES = 10_000


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("deeds")
def test_ten_thousand_batches_leave_memory_flat(engine, make_batch, our_descriptors, our_children):
    """In this process and in the worker, once 1,000 batches have filled what is bounded."""
    built = engine(
        {"type": "a", "plugin": "rows", "execution": "inline", "breaker": {}},
        {"type": "b", "plugin": "rows", "execution": "thread", "cache": {"rows": 100}},
        {"type": "c", "plugin": "rows", "execution": "process"},
        {"type": "d", "plugin": "later"},
    )
    built.setup()
    worker = our_children()
    assert len(worker) == 1
    for number in range(BATCHES):
        if number == 1000:
            gc.collect()
            before = [psutil.Process().memory_info().rss, worker[0].memory_info().rss]
            descriptors = our_descriptors()
        table = built.score(make_batch(f"{number}", "none", "2", training=True, step=number))
        assert table.columns["c"].scores[0] == number
    gc.collect()
    after = [psutil.Process().memory_info().rss, worker[0].memory_info().rss]
    grown = [(now - then) / 2**20 for now, then in zip(after, before, strict=True)]
    assert max(grown) < 4.0, f"MiB grown: {grown}"
    assert our_descriptors() == descriptors
    assert built.describe()[1]["cache"]["kept"] == 100
