"""What a deadline does, wherever the provider runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_reward_sdk import RewardError, RewardProvider


def _workers():
    return sum(thread.name == "reward-m" for thread in threading.enumerate())


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

    built = engine({"type": "m", "provider": Hangs, "timeout": 0.2, **kit.lenient})
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
        {"type": "m", "provider": Hangs, "timeout": 0.1, "max_abandoned": 2, **kit.lenient}, healthy
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
        {"type": "m", "provider": HangsOnce, "reads": ["hang"], "timeout": 0.3, **kit.lenient}
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
            **kit.lenient,
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
        {"type": "m", "provider": kit.says_later(forever), "timeout": 0.1, **kit.lenient}
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
        {"type": "m", "provider": Blocks, "timeout": 0.1, "queue_timeout": 0.2, **kit.lenient}
    )
    reasons = [built.score(kit.batch(1)).columns["m"].reasons[0] for _ in range(3)]
    assert reasons[0] == "no answer within timeout: 0.1 s"
    assert "event loop is held up" in reasons[1]
    assert reasons[2] is None
    gate_event.set()


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

    built = engine({"type": "m", "provider": Once, "timeout": 0.1, **kit.lenient})
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


def test_closing_does_not_wait_for_a_hung_thread(kit, gate_event):
    built = kit.engine(
        {
            "type": "m",
            "provider": kit.says(lambda b: gate_event.wait() and [1.0], execution="thread"),
            "timeout": 0.1,
            **kit.lenient,
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
