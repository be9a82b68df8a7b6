"""A limit that mounts, threads, event loops and processes share."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import pytest

from verl_core.rewards.execution import wait_any
from verl_core.rewards.execution.slots import HostSlots
from verl_reward_sdk import ConfigError, ProviderTimeout

_HOLDER = """
import sys, time
from pathlib import Path
from verl_core.rewards.execution.slots import HostSlots
slots = HostSlots("api.example.com", int(sys.argv[2]), folder=Path(sys.argv[1]))
held = [slots.acquire(30) for _ in range(int(sys.argv[3]))]
print("held", flush=True)
sys.stdin.readline()
for slot in held:
    slot.release()
print("released", flush=True)
"""


@pytest.fixture
def slots(tmp_path):
    def make(concurrency, name="api.example.com"):
        return HostSlots(name, concurrency, folder=tmp_path)

    return make


@pytest.fixture
def holder(tmp_path):
    """Another process that holds some slots until it gets a line."""

    @contextmanager
    def start(concurrency, count):
        words = [sys.executable, "-c", _HOLDER, str(tmp_path), str(concurrency), str(count)]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    return start


def test_all_who_name_a_host_share_its_slots(slots):
    mine, other = slots(2), slots(2)
    held = [mine.acquire(1.0), other.acquire(1.0)]
    with pytest.raises(
        ProviderTimeout, match=r"no free slot of the host 'api\.example\.com' \(con"
    ):
        other.acquire(0.1)
    with slots(2, "another.example.com").acquire(0.1):
        held[0].release()
        held[0].release()  # the second time gives nothing back
        with mine.acquire(1.0), pytest.raises(ProviderTimeout):
            mine.acquire(0.05)
    held[1].release()


def test_another_process_counts_and_frees_its_slots_when_it_ends_or_is_killed(slots, holder):
    ours = slots(2)
    with holder(2, 2) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ProviderTimeout):
            ours.acquire(0.1)
        process.stdin.write("\n")
        process.stdin.flush()
        ours.acquire(20.0).release()
    with holder(2, 2) as process:
        assert process.stdout.readline() == "held\n"
        process.kill()
        held = [ours.acquire(20.0) for _ in range(2)]
    for slot in held:
        slot.release()


def test_one_who_was_killed_in_line_holds_up_nobody(slots, holder, tmp_path):
    ours = slots(1)
    first = ours.acquire(1.0)
    with holder(1, 1) as process:
        while not list(tmp_path.glob("*/wait-*")):
            time.sleep(0.01)
        process.kill()
        process.wait()
    first.release()
    ours.acquire(20.0).release()
    assert not list(tmp_path.glob("*/wait-*"))


def test_another_process_that_waits_is_not_passed_by(slots, holder, tmp_path):
    ours = slots(1)
    slot = ours.acquire(1.0)
    with holder(1, 1) as process:
        while not list(tmp_path.glob("*/wait-*")):
            time.sleep(0.01)
        slot.release()
        assert process.stdout.readline() == "held\n" or pytest.fail("it got no slot")
        ticket = ours.line_up(lambda: None)
        assert ticket.take() is None
        ticket.leave()


def test_the_waiting_of_a_process_are_served_in_the_order_in_which_they_came(slots):
    ours = slots(1)
    first, served = ours.acquire(1.0), []
    tickets = [ours.line_up(lambda: None) for _ in range(3)]
    assert [ticket.take() for ticket in reversed(tickets)] == [None] * 3
    first.release()
    assert tickets[1].take() is None  # it is not its turn
    for number, ticket in enumerate(tickets):
        slot = ticket.take()
        served.append(number)
        slot.release()
    assert served == [0, 1, 2]


def test_never_more_at_once_than_the_limit_from_threads_and_event_loops(slots):
    ours, lock, now, most = slots(3), threading.Lock(), [0], [0]

    def enter(by):
        with lock:
            now[0] += by
            most[0] = max(most[0], now[0])

    def blocking():
        with slots(3).acquire(60.0):
            enter(1)
            time.sleep(0.01)
            enter(-1)

    async def waiting():
        with await ours.acquire_async(60.0):
            enter(1)
            await asyncio.sleep(0.01)
            enter(-1)

    async def several():
        await asyncio.gather(*(waiting() for _ in range(20)))

    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(asyncio.run, several()) for _ in range(2)]
        work += [pool.submit(blocking) for _ in range(20)]
        for one in work:
            one.result()
    assert most[0] == 3
    assert now[0] == 0


def test_a_cancelled_or_late_waiter_leaves_the_line(slots):
    ours = slots(1)

    async def main():
        with await ours.acquire_async(1.0):
            cancelled = asyncio.create_task(ours.acquire_async(60.0))
            await asyncio.sleep(0.05)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            with pytest.raises(ProviderTimeout):
                await ours.acquire_async(0.05)
        (await ours.acquire_async(1.0)).release()

    asyncio.run(main())


def test_a_slot_that_is_given_back_wakes_the_first_in_line(slots):
    ours, woken = slots(1), threading.Event()
    slot = ours.acquire(1.0)
    ticket = ours.line_up(woken.set)
    assert ticket.take() is None
    slot.release()
    assert woken.wait(20)
    ticket.take().release()


def test_a_tidied_runtime_folder_is_made_again(slots, tmp_path):
    ours = slots(1)
    ours.acquire(1.0).release()
    for path in ours.folder.iterdir():
        path.unlink()
    ours.folder.rmdir()
    ours.acquire(5.0).release()
    assert ours.folder.is_dir()


def test_a_folder_that_cannot_be_used_is_a_config_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the slots of the host 'a' cannot be kept in"):
        HostSlots("a", 1, folder=tmp_path / "file")
    target = HostSlots("a", 1, folder=tmp_path).folder
    target.rename(tmp_path / "elsewhere")
    target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is no folder of this user"):
        HostSlots("a", 1, folder=tmp_path)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        HostSlots("a", 0, folder=tmp_path)


def test_nothing_is_left_open(slots, our_descriptors):
    ours = slots(2)
    before = our_descriptors()
    for _ in range(50):
        with ours.acquire(1.0), ours.acquire(1.0), pytest.raises(ProviderTimeout):
            ours.acquire(0.0)
    assert our_descriptors() == before
    assert {name[:4] for name in os.listdir(ours.folder)} == {"slot"}


def test_process_mounts_share_a_hosts_slots(slots, process_runner, make_batch, tmp_path):
    ours = slots(1)
    runners = [process_runner(slots=slots(1), workers=2, queue_timeout=0.5) for _ in range(2)]
    for runner in runners:
        runner.setup()
    with ours.acquire(1.0):
        calls = [runner.submit(make_batch("score 1")) for runner in runners]
        for call in calls:
            wait_any([call])
            assert "not begun within queue_timeout: 0.5 s" in str(call.future.exception())
    calls = [runner.submit(make_batch("score 1")) for runner in runners for _ in range(3)]
    while not all(call.done for call in calls):
        wait_any([call for call in calls if not call.done])
    assert [call.future.exception() for call in calls] == [None] * 6
    spans = sorted((call.started, call.ended) for call in calls)
    assert all(ended <= started for (_, ended), (started, _) in pairwise(spans))
    for runner in runners:
        runner.close()
    assert not list(tmp_path.glob("*/wait-*"))
