"""`execution: async`: cancellations that come from elsewhere, and those that nobody heeds."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from verl_core.rewards.execution import wait_any
from verl_core.rewards.execution.slots import HostSlots
from verl_reward_sdk import AsyncRewardProvider, ProviderTimeout
from verl_reward_sdk.provider import ProviderConfig

LENIENT = {"on_error": "abstain", "max_error_rate": 1.0}


class Deaf:
    """Coroutines that go on, however often they are cancelled, until they are let go."""

    def __init__(self):
        self.go = threading.Event()
        self.now = self.most = 0

    async def score(self, batch):
        self.now += 1
        self.most = max(self.most, self.now)
        while not self.go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        self.now -= 1
        return [1.0] * len(batch)


@pytest.fixture
def deaf():
    one = Deaf()
    yield one
    one.go.set()


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def reasons(built, batch, times):
    return [built.score(batch).columns["m"].reasons[0] for _ in range(times)]


def until(holds):
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_a_setup_that_is_cancelled_when_it_is_built_again_fails_the_call(
    kit, engine, gate_event, error
):
    made = []

    class Provider(AsyncRewardProvider[ProviderConfig]):
        """Blocks its first loop; its second set-up is cancelled."""

        def __init__(self):
            made.append(self)

        async def setup(self):
            if len(made) == 2:
                raise error

        async def score(self, batch):
            if len(made) == 1:
                gate_event.wait(60)
            return [1.0]

    keys = {"timeout": 0.2, "queue_timeout": 0.3, **LENIENT}
    built = engine({"type": "m", "provider": Provider, **keys})
    told = reasons(built, kit.batch(1), 4)
    assert "event loop is held up" in told[1]
    assert told[2].startswith("it could not be set up again: ")
    assert error.__name__ in told[2]
    assert told[3] is None  # the third instance
    gate_event.set()


def test_a_call_that_is_cancelled_before_it_began_ends_at_once(kit, engine):
    async def cancels(batch):
        if batch.responses[0] == "answer 0":
            await asyncio.sleep(0)  # so that the others are there
            for task in asyncio.all_tasks():
                task.cancel()
        await asyncio.sleep(3600)

    keys = {"timeout": 600.0, **LENIENT}
    built = engine({"type": "m", "provider": kit.says_later(cancels), **keys})
    runner = built.mounts["m"].runner
    calls = [runner.submit(kit.batch(1)) for _ in range(5)]
    while not all(call.done for call in calls):
        wait_any([call for call in calls if not call.done])
    assert {str(call.future.exception()) for call in calls} == {"the call was cancelled"}


def test_calls_that_go_on_after_their_deadline_count_as_workers(kit, engine, deaf):
    keys = {"timeout": 0.1, "workers": 2, **LENIENT}
    built = engine({"type": "m", "provider": kit.says_later(deaf.score), **keys})
    told = reasons(built, kit.batch(1), 4)
    assert told[:2] == ["no answer within timeout: 0.1 s"] * 2
    for late in told[2:]:
        assert late == (
            "not begun within queue_timeout: 0.1 s: 2 calls are under way (workers: 2), 2 of them"
            " though they were cancelled"
        )
    assert deaf.most == 2
    deaf.go.set()
    assert until(lambda: deaf.now == 0)
    assert reasons(built, kit.batch(1), 1) == [None]


@pytest.mark.parametrize(("workers", "most"), [(8, 3), (1, 1)])
def test_so_many_of_them_and_the_mount_fails_at_once_until_they_end(
    kit, engine, deaf, monkeypatch, workers, most
):
    grace = "verl_core.rewards.execution.asynchronous._GRACE_SECONDS"
    monkeypatch.setattr(grace, 0.05)
    keys = {"timeout": 0.1, "workers": workers, "max_abandoned": 3, **LENIENT}
    built = engine({"type": "m", "provider": kit.says_later(deaf.score), **keys})
    reasons(built, kit.batch(1), most)
    assert until(lambda: built.describe()[0]["state"] == "failed")
    (call,) = [built.mounts["m"].runner.submit(kit.batch(1))]
    assert call.done
    assert isinstance(call.future.exception(), ProviderTimeout)
    assert f"{most} of its calls go on though they were cancelled" in str(call.future.exception())
    assert deaf.most == most
    deaf.go.set()
    assert until(lambda: built.describe()[0]["state"] != "failed")
    assert reasons(built, kit.batch(1), 1) == [None]


def test_a_host_s_slot_is_held_while_a_call_goes_on(kit, engine, deaf, runtime):
    keys = {"timeout": 0.1, "host": {"name": "x", "concurrency": 1}, **LENIENT}
    built = engine({"type": "m", "provider": kit.says_later(deaf.score), **keys})
    assert reasons(built, kit.batch(1), 1) == ["no answer within timeout: 0.1 s"]
    slots = HostSlots("x", 1)
    with pytest.raises(ProviderTimeout):
        slots.acquire(0.2)
    deaf.go.set()
    slots.acquire(20.0).release()


def test_closing_leaves_such_calls_behind_and_neither_thread_nor_slot(kit, deaf, runtime, caplog):
    keys = {"timeout": 0.1, "host": {"name": "x", "concurrency": 1}, **LENIENT}
    built = kit.engine({"type": "deaf", "provider": kit.says_later(deaf.score), **keys})
    built.score(kit.batch(1))
    built.close()
    assert "mount deaf: 1 of its coroutines ignore their cancellation" in caplog.text
    assert "reward-deaf" not in {thread.name for thread in threading.enumerate()}
    HostSlots("x", 1).acquire(1.0).release()
    assert deaf.now == 1  # it never goes on


def test_a_blocked_loop_is_replaced_where_one_call_is_all_that_may_be_under_way(
    kit, engine, gate_event
):
    made = []

    class Blocks(AsyncRewardProvider[ProviderConfig]):
        """Blocks its first instance's loop."""

        def __init__(self):
            made.append(self)

        async def score(self, batch):
            if self is made[0]:
                gate_event.wait(60)
            return [1.0]

    keys = {"timeout": 0.1, "queue_timeout": 0.3, "workers": 1, **LENIENT}
    built = engine({"type": "m", "provider": Blocks, **keys})
    told = reasons(built, kit.batch(1), 3)
    assert told[0] == "no answer within timeout: 0.1 s"
    assert "event loop is held up" in told[1]
    assert told[2] is None
    gate_event.set()
