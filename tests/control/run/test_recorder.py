from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from verl_core.control.run import Recorder, SampleQuery
from verl_core.control.run.recorder import LOOKED_AT
from verl_core.rewards import RewardEngine, RewardTable
from verl_reward_sdk import RewardBatch


class Clock:
    """Seconds that a test turns; each look costs `cost`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost = 0.0

    def __call__(self) -> float:
        self.now += self.cost
        return self.now


def score(engine: RewardEngine, *responses: str) -> None:
    records: list[dict[str, Any]] = [
        {"prompt": f"Q{i}", "response": text, "ground_truth": "It is fine, please."}
        for i, text in enumerate(responses)
    ]
    engine.score(RewardBatch.from_records(records))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def recorder_of(engine: RewardEngine, clock: Clock, **options: Any) -> Recorder:
    recorder = Recorder({"name": "shop"}, clock=clock, **options)
    engine.subscribe(recorder.observe)
    return recorder


def test_an_interval_is_the_mean_of_its_batches_by_rows(engine: RewardEngine, clock: Clock) -> None:
    recorder = recorder_of(engine, clock)
    score(engine, "please, sir", "please, sir", "please, sir")  # style 0.75
    score(engine, "no")  # style 0
    assert list(recorder.series().steps) == []  # the interval has not ended
    clock.now = 2.0
    view = recorder.series()
    assert list(view.steps) == [4]
    assert view.figures["reward/style/mean"][0] == pytest.approx(0.75 * 3 / 4)
    assert view.figures["weights/revision"][0] == 1.0
    assert view.figures[LOOKED_AT][0] == 1.0
    clock.now = 9.0
    assert list(recorder.series().steps) == [4]  # nothing was scored: no point


def test_a_new_weight_shows_in_the_next_interval(engine: RewardEngine, clock: Clock) -> None:
    recorder = recorder_of(engine, clock)
    score(engine, "please, sir")
    assert engine.store is not None
    engine.store.update({"style": 3.0}, author="ada")
    clock.now = 2.0
    score(engine, "please, sir")
    clock.now = 4.0
    view = recorder.series()
    assert list(view.figures["weights/style"]) == [1.0, 3.0]
    assert list(view.figures["weights/revision"]) == [1.0, 2.0]


def test_under_load_rows_are_counted_and_not_looked_at(engine: RewardEngine, clock: Clock) -> None:
    recorder = recorder_of(engine, clock, share=0.02)
    clock.cost = 0.015  # one look at a batch costs as much: two are more than there is room for
    for _ in range(8):
        score(engine, "please")
    clock.cost, clock.now = 0.0, 5.0
    view = recorder.series()
    assert list(view.steps) == [8]
    assert view.figures[LOOKED_AT][0] == 2 / 8


def test_samples_are_the_worst_and_the_best_of_a_batch(engine: RewardEngine, clock: Clock) -> None:
    recorder = recorder_of(engine, clock)
    score(engine, "no", "a rogue", "It is fine, please.")
    page = recorder.samples(SampleQuery())
    assert [record["response"] for _, record in page.rows] == ["It is fine, please.", "a rogue"]
    best = page.rows[0][1]
    assert best["fused"] == pytest.approx(1.25)
    assert best["explain"]["mounts"]["style"]["reason"]
    gated = recorder.samples(SampleQuery(status="gated"))
    assert [record["response"] for _, record in gated.rows] == ["a rogue"]


def test_memory_is_bounded(engine: RewardEngine, clock: Clock) -> None:
    recorder = Recorder(clock=clock, samples=10, samples_per_interval=4)
    seen: list[tuple[RewardBatch, RewardTable]] = []
    engine.subscribe(lambda batch, table: seen.append((batch, table)))
    score(engine, "please " * 600)

    def observe(times: int) -> None:
        for _ in range(times):
            clock.now += 2.0
            recorder.observe(*seen[0])

    observe(30)
    tracemalloc.start()
    try:
        observe(20)
        before = tracemalloc.get_traced_memory()[0]
        observe(200)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200_000  # a sample has some 5,000 bytes, an interval's figures some 500
    page = recorder.samples(SampleQuery(limit=200))
    assert (len(page.rows), page.total) == (10, 250)


def test_of_a_long_text_the_beginning_is_kept(clock: Clock, engine: RewardEngine) -> None:
    recorder = recorder_of(engine, clock)
    score(engine, "y" * 20_001)
    assert recorder.samples(SampleQuery()).rows[0][1]["response"] == "y" * 20_000


def test_of_an_engine_gathers_from_then_on(engine: RewardEngine) -> None:
    score(engine, "before")
    recorder = Recorder.of(engine, name="shop")
    score(engine, "after")
    assert [r["response"] for _, r in recorder.samples(SampleQuery()).rows] == ["after"]
    assert (recorder.kind, recorder.axis, recorder.facts()["name"]) == ("serving", "rows", "shop")
