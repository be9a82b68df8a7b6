"""Who may call from where: threads, event loops, many callers at once."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest


def test_all_mounts_of_a_stage_run_at_once(kit, engine):
    meeting = threading.Barrier(4, timeout=20)

    def meet(batch):
        meeting.wait()
        return [1.0]

    async def meet_later(batch):
        await asyncio.to_thread(meeting.wait)
        return [1.0]

    table = engine(
        {"type": "inline", "provider": kit.says(meet, execution="inline")},
        {"type": "thread", "provider": kit.says(meet, execution="thread")},
        {"type": "other", "provider": kit.says(meet, execution="thread")},
        {"type": "later", "provider": kit.says_later(meet_later)},
    ).score(kit.batch(1))
    assert table.fused.tolist() == [4.0]


def test_two_mounts_do_not_share_an_event_loop(kit, engine, gate_event):
    async def block(batch):
        gate_event.wait()
        return [1.0]

    table = engine(
        {"type": "blocks", "provider": kit.says_later(block), "timeout": 0.2, **kit.lenient},
        {"type": "waits", "provider": kit.says_later(kit.lengths_later), "timeout": 20.0},
    ).score(kit.batch(1))
    assert [column.status[0] for column in table.columns.values()] == ["failed", "ok"]
    gate_event.set()


def test_ascore_works_under_several_event_loops_one_after_the_other_and_at_once(kit, engine):
    built = engine(
        {"type": "a", "provider": kit.says_later(kit.lengths_later)},
        {"type": "t", "provider": kit.says(kit.lengths, execution="thread")},
        {"type": "i", "provider": kit.says(kit.lengths)},
    )

    async def several():
        return await asyncio.gather(*(built.ascore(kit.batch(2)) for _ in range(8)))

    with ThreadPoolExecutor(3) as pool:
        rounds = [pool.submit(asyncio.run, several()) for _ in range(3)]
        tables = [table for one in rounds for table in one.result()]
    tables += asyncio.run(several())
    assert len(tables) == 32
    assert {tuple(table.fused) for table in tables} == {(24.0, 24.0)}


def test_ascore_does_not_block_its_callers_loop(kit, engine, gate_event):
    built = engine(
        {
            "type": "m",
            "provider": kit.says(lambda b: gate_event.wait() and [1.0], execution="thread"),
        }
    )
    built.setup()

    async def main():
        scoring = asyncio.create_task(built.ascore(kit.batch(1)))
        await asyncio.sleep(0.05)  # the loop turns while the provider hangs
        assert not scoring.done()
        gate_event.set()
        return await scoring

    assert asyncio.run(main()).fused.tolist() == [1.0]


def test_cancelling_ascore_cancels_the_call_it_waits_for(kit, engine):
    begun, ended = threading.Event(), threading.Event()

    async def forever(batch):
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    built = engine({"type": "m", "provider": kit.says_later(forever)})

    async def main():
        scoring = asyncio.create_task(built.ascore(kit.batch(1)))
        await asyncio.to_thread(begun.wait)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring

    asyncio.run(main())
    assert ended.wait(10)


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_sixty_four_threads_score_at_once_and_each_gets_its_own_rows(kit, engine, execution):
    inside, most = [], []
    lock = threading.Lock()

    def score(batch):
        with lock:
            inside.append(1)
            most.append(len(inside))
        time.sleep(0.001)
        with lock:
            inside.pop()
        return list(batch.columns["value"])

    provider = kit.says(score, execution=execution, reads=frozenset({"value"}))
    built = engine(
        {"type": "m", "provider": provider},
        {"type": "a", "provider": kit.says_later(kit.lengths_later), "weight": 0.0},
    )
    start = threading.Barrier(64, timeout=30)

    def one(number):
        start.wait()
        return built.score(kit.batch(columns={"value": [float(number)] * 3})).fused.tolist()

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(one, range(64))) == [[float(i)] * 3 for i in range(64)]
    assert max(most) == 1  # one thread at a time: it does not say that it is thread safe
    assert built.describe()[0]["calls"] == 64


def test_a_thread_safe_provider_is_called_from_several_threads_at_once(kit, engine):
    meeting = threading.Barrier(3, timeout=20)

    def meet(batch):
        meeting.wait()
        return [1.0]

    built = engine({"type": "m", "provider": kit.says(meet, execution="thread", thread_safe=True)})
    with ThreadPoolExecutor(3) as pool:
        tables = list(pool.map(lambda _: built.score(kit.batch(1)), range(3)))
    assert [table.fused.tolist() for table in tables] == [[1.0]] * 3
