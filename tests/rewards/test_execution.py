"""Where providers run, what a deadline does, and who may call from where."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.rewards import RewardEngine
from verl_reward_sdk import ConfigError, ProviderError, RewardError, RewardProvider

LENIENT = {"on_error": "abstain", "max_error_rate": 1.0}


def _workers():
    return sum(thread.name == "reward-m" for thread in threading.enumerate())


def length(batch):
    return [float(len(response)) for response in batch.responses]


async def length_later(batch):
    await asyncio.sleep(0)
    return length(batch)


@pytest.fixture
def gate_event():
    """An event that hung providers wait for; set when the test ends, so that they go home."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("execution", ["inline", "thread", "async"])
def test_scores_are_the_same_bits_wherever_the_provider_runs(kit, engine, execution):
    if execution == "async":
        provider = kit.says_later(length_later)
    else:
        provider = kit.says(length, execution=execution)
    mounts = [{"type": "m", "provider": provider, "weight": 0.1}]
    mounts.append({"type": "n", "provider": kit.says([1 / 3, 0.7]), "weight": 0.3})
    table = engine(*mounts).score(kit.batch(2))
    expected = [0.1 * 8.0 + 0.3 * (1 / 3), 0.1 * 8.0 + 0.3 * 0.7]
    assert table.fused.tolist() == expected


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


@pytest.mark.parametrize("place", ["process", "ray"])
def test_places_of_a_later_release_are_refused_at_load(kit, engine, place):
    with pytest.raises(ConfigError, match=f"{place} comes with a later release.*inline, async"):
        engine({"type": "m", "provider": kit.says([1.0], execution=place)})


def test_a_provider_of_coroutines_runs_as_async_only(kit, engine):
    with pytest.raises(ConfigError, match=r"reward\.m\.execution.*made of coroutines.*async"):
        engine({"type": "m", "provider": kit.says_later(length_later), "execution": "thread"})
    with pytest.raises(ConfigError, match=r"not made of coroutines.*inline or thread"):
        engine({"type": "m", "provider": kit.says([1.0]), "execution": "async"})


def test_at_its_deadline_a_thread_is_left_behind_and_a_fresh_instance_serves(
    kit, engine, gate_event
):
    made = []

    class Hangs(RewardProvider):
        """Hangs on its first instance only."""

        def __init__(self, config=None):
            self.number = len(made)
            made.append(self)
            self.calls = 0

        def score(self, batch):
            self.calls += 1
            if self.number == 0:
                gate_event.wait()
            return [float(self.number)]

    built = engine({"type": "m", "provider": Hangs, "timeout": 0.2, **LENIENT})
    first = built.score(kit.batch(1))
    assert first.columns["m"].reasons == ("no answer within timeout: 0.2 s",)
    assert first.columns["m"].status.tolist() == ["failed"]
    gate_event.set()  # it comes back, and must go home
    end = time.monotonic() + 20
    while _workers() > 0 and time.monotonic() < end:
        time.sleep(0.01)
    assert [built.score(kit.batch(1)).fused.tolist() for _ in range(3)] == [[1.0]] * 3
    assert _workers() == 1
    assert [provider.calls for provider in made] == [1, 3]  # the poisoned one was called no more


def test_after_max_abandoned_the_mount_fails_at_once_and_advises_process(kit, engine, gate_event):
    calls = []

    class Hangs(RewardProvider):
        """Always hangs."""

        def __init__(self):
            pass

        def score(self, batch):
            calls.append(1)
            gate_event.wait()
            return [1.0]

    healthy = {"type": "ok", "provider": kit.says([0.5])}
    built = engine(
        {"type": "m", "provider": Hangs, "timeout": 0.1, "max_abandoned": 2, **LENIENT}, healthy
    )
    tables = [built.score(kit.batch(1)) for _ in range(4)]
    assert len(calls) == 2
    assert "execution: process" in tables[3].columns["m"].reasons[0]
    assert [table.fused.tolist() for table in tables] == [[0.5]] * 4
    assert built.describe()[0]["state"] == "failed"
    gate_event.set()


def test_a_call_in_line_moves_to_the_fresh_instance_when_the_one_before_it_hangs(
    kit, engine, gate_event
):
    class HangsOnce(RewardProvider):
        """Hangs on the row of sample s0."""

        def __init__(self):
            pass

        def score(self, batch):
            if batch.columns["hang"][0]:
                gate_event.wait()
            return [1.0]

    built = engine(
        {"type": "m", "provider": HangsOnce, "reads": ["hang"], "timeout": 0.3, **LENIENT}
    )
    with ThreadPoolExecutor(2) as pool:
        hung = pool.submit(built.score, kit.batch(columns={"hang": [True]}))
        time.sleep(0.1)
        waiting = pool.submit(built.score, kit.batch(columns={"hang": [False]}))
        assert hung.result().columns["m"].status.tolist() == ["failed"]
        assert waiting.result().columns["m"].status.tolist() == ["ok"]
    gate_event.set()


def test_queue_timeout_bounds_the_wait_before_a_call_begins(kit, engine, gate_event):
    built = engine(
        {
            "type": "m",
            "provider": kit.says(lambda b: gate_event.wait() and [1.0], execution="thread"),
            "timeout": 30.0,
            "queue_timeout": 0.2,
            **LENIENT,
        }
    )
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(built.score, kit.batch(1))
        time.sleep(0.05)
        table = pool.submit(built.score, kit.batch(1)).result()
        assert table.columns["m"].reasons == ("not begun within queue_timeout: 0.2 s",)
        gate_event.set()
        assert running.result().fused.tolist() == [1.0]


def test_an_async_call_is_cancelled_at_its_deadline(kit, engine):
    ended = threading.Event()

    async def forever(batch):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    table = engine(
        {"type": "m", "provider": kit.says_later(forever), "timeout": 0.1, **LENIENT}
    ).score(kit.batch(1))
    assert table.columns["m"].reasons == ("no answer within timeout: 0.1 s",)
    assert ended.wait(10)


def test_a_coroutine_that_blocks_its_loop_is_left_behind_and_replaced(kit, engine, gate_event):
    from verl_reward_sdk import AsyncRewardProvider

    made = []

    class Blocks(AsyncRewardProvider):
        """Blocks the event loop on its first instance only."""

        def __init__(self):
            self.number = len(made)
            made.append(self)

        async def score(self, batch):
            if self.number == 0:
                gate_event.wait()
            return [1.0]

    built = engine(
        {"type": "m", "provider": Blocks, "timeout": 0.1, "queue_timeout": 0.2, **LENIENT}
    )
    reasons = [built.score(kit.batch(1)).columns["m"].reasons[0] for _ in range(3)]
    assert reasons[0] == "no answer within timeout: 0.1 s"
    assert "event loop is held up" in reasons[1]
    assert reasons[2] is None
    gate_event.set()


def test_two_mounts_do_not_share_an_event_loop(kit, engine, gate_event):
    async def block(batch):
        gate_event.wait()
        return [1.0]

    table = engine(
        {"type": "blocks", "provider": kit.says_later(block), "timeout": 0.2, **LENIENT},
        {"type": "waits", "provider": kit.says_later(length_later), "timeout": 20.0},
    ).score(kit.batch(1))
    assert [column.status[0] for column in table.columns.values()] == ["failed", "ok"]
    gate_event.set()


def test_ascore_works_under_several_event_loops_one_after_the_other_and_at_once(kit, engine):
    built = engine(
        {"type": "a", "provider": kit.says_later(length_later)},
        {"type": "t", "provider": kit.says(length, execution="thread")},
        {"type": "i", "provider": kit.says(length)},
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
        {"type": "a", "provider": kit.says_later(length_later), "weight": 0.0},
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


def test_setup_score_and_close_happen_in_one_thread(engine, kit):
    threads = []

    class Notes(RewardProvider):
        """Notes who calls it."""

        def __init__(self):
            pass

        def setup(self):
            threads.append(threading.get_ident())

        def score(self, batch):
            threads.append(threading.get_ident())
            return [1.0]

        close = setup

    built = engine({"type": "m", "provider": Notes})
    built.score(kit.batch(1))
    built.score(kit.batch(1))
    built.close()
    assert len(threads) == 4
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_a_provider_that_cannot_be_loaded_is_named_with_its_mount(kit, engine, execution):
    class Broken(RewardProvider):
        """Cannot be loaded."""

        def __init__(self):
            pass

        def setup(self):
            raise OSError("weights.safetensors is truncated")

    built = engine({"type": "tone", "provider": Broken, "execution": execution})
    with pytest.raises(ProviderError, match=r"'tone'.*OSError: weights.safetensors is truncated"):
        built.setup()


def test_an_instance_that_cannot_be_rebuilt_fails_the_rows_with_the_reason(kit, engine, gate_event):
    made = []

    class Once(RewardProvider):
        """Loads once, hangs, and cannot be loaded again."""

        def __init__(self):
            made.append(self)

        def setup(self):
            if len(made) > 1:
                raise OSError("the disk is gone")

        def score(self, batch):
            gate_event.wait()
            return [1.0]

    built = engine({"type": "m", "provider": Once, "timeout": 0.1, **LENIENT})
    built.score(kit.batch(1))
    reason = built.score(kit.batch(1)).columns["m"].reasons[0]
    assert reason == "it could not be set up again: OSError: the disk is gone"
    gate_event.set()


def test_a_timeout_counts_as_failed_rows_of_the_step(kit, engine, gate_event):
    hangs = kit.says(lambda b: gate_event.wait() and [1.0], execution="thread")
    built = engine({"type": "m", "provider": hangs, "timeout": 0.1})
    with pytest.raises(RewardError, match=r"step 3 .*m: 1 of 1 rows failed.*timeout: 0.1 s"):
        built.score(kit.batch(1))
    gate_event.set()


def test_a_closed_engine_says_so(kit):
    built = kit.engine({"type": "m", "provider": kit.says([1.0], execution="thread")})
    built.score(kit.batch(1))
    built.close()
    with pytest.raises(ProviderError, match="closed"):
        built.score(kit.batch(1))


def test_closing_does_not_wait_for_a_hung_thread(kit, gate_event):
    built = kit.engine(
        {
            "type": "m",
            "provider": kit.says(lambda b: gate_event.wait() and [1.0], execution="thread"),
            "timeout": 0.1,
            **LENIENT,
        }
    )
    built.score(kit.batch(1))
    closing = threading.Thread(target=built.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert not gate_event.is_set()


HANG = """
    import threading, asyncio
    from verl_core.config.mount import MountConfig
    from verl_core.config.rewards import RewardsConfig
    from verl_core.rewards import RewardEngine
    from verl_reward_sdk import AsyncRewardProvider, RewardBatch, RewardProvider

    class Hangs(RewardProvider):
        def __init__(self): pass
        def score(self, batch): threading.Event().wait()

    class Blocks(AsyncRewardProvider):
        def __init__(self): pass
        async def score(self, batch): threading.Event().wait()

    lenient = dict(node_class="here.It", timeout=0.2, queue_timeout=0.2, max_error_rate=1.0)
    config = RewardsConfig(mounts=(
        MountConfig(type="hangs", **lenient), MountConfig(type="blocks", **lenient)))
    kinds = {"hangs": Hangs, "blocks": Blocks}
    engine = RewardEngine.from_config(config, node_factory=lambda m, base: kinds[m.name]())
    batch = RewardBatch(sample_ids=["a"], prompts=["p"], responses=["r"], training=True)
    for _ in range(2):
        table = engine.score(batch)
    print(*[column.status[0] for column in table.columns.values()])
"""


def test_hung_providers_never_hold_up_the_interpreters_exit():
    script = textwrap.dedent(HANG)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("failed failed")


def test_rewards_import_no_torch():
    script = (
        "import sys, verl_core.rewards.engine; print([m for m in ('torch',) if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_mount_runs_where_the_provider_says_unless_the_config_says_otherwise(kit, engine):
    built = engine(
        {"type": "a", "provider": kit.says([1.0], execution="thread")},
        {"type": "b", "provider": kit.says([1.0], execution="thread"), "execution": "inline"},
    )
    assert [mount.execution for mount in built.mounts.values()] == ["thread", "inline"]


def test_an_engine_is_a_context_manager():
    config = RewardsConfig(mounts=(MountConfig(type="m", node_class="here.It"),))
    closed = []

    class Closes(RewardProvider):
        """Says when it is closed."""

        def __init__(self):
            pass

        def close(self):
            closed.append(True)

    with RewardEngine.from_config(config, node_factory=lambda mount, base: Closes()) as built:
        assert built.describe()[0]["state"] == "ready"
    assert closed == [True]
