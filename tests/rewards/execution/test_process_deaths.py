"""`execution: process`: workers that hang, crash or leak are killed and replaced, and what becomes
of their calls."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from verl_core.rewards.execution import wait_any
from verl_core.rewards.execution.call import WorkerLost
from verl_reward_sdk import (
    ContractError,
    ProviderError,
    ProviderTimeout,
)


@pytest.mark.parametrize("deed", ["sleep", "hold_the_gil"])
def test_at_its_deadline_a_worker_is_killed_and_replaced(process_runner, order, gone, deed):
    runner = process_runner(timeout=0.4)
    runner.setup()
    (first,) = order(runner, "pid")
    error = order(runner, deed)
    assert isinstance(error, ProviderTimeout)
    assert str(error) == "no answer within timeout: 0.4 s; its worker was killed"
    assert gone(int(first))
    (second,) = order(runner, "pid")
    assert second != first
    assert not runner.exhausted


@pytest.mark.parametrize("how", ["here", "away"])
@pytest.mark.parametrize("then", ["sleep", "exit+3"])
def test_its_children_are_killed_with_it_wherever_they_went(
    process_runner, order, gone, read_number, tmp_path, how, then
):
    runner = process_runner(timeout=2.0)
    path = tmp_path / "pid"
    error = order(runner, f"beget {path} {how} {then}")
    assert isinstance(error, ProviderError)
    assert gone(read_number(path))
    assert order(runner, "score 0.5") == [0.5]


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("crash", "its worker died by SIGSEGV (signal 11)"),
        ("exit 3", "its worker exited with code 3"),
        ("exit 0", "its worker exited with code 0"),
        ("kill", "its worker died by SIGKILL (signal 9): killed from outside, or out of memory"),
    ],
)
def test_a_worker_that_dies_fails_its_call_with_the_reason_and_is_replaced(
    process_runner, order, deed, said
):
    runner = process_runner()
    error = order(runner, "score 1", deed)
    assert type(error) is WorkerLost
    assert str(error) == said
    assert order(runner, "score 0.25") == [0.25]


def test_a_worker_killed_while_it_holds_a_lock_takes_no_other_call_with_it(
    process_runner, make_batch, read_number, order, tmp_path
):
    runner = process_runner(workers=2)
    runner.setup()
    struck = runner.submit(make_batch(f"tell {tmp_path / 'pid'}"))
    other = runner.submit(make_batch("sleep 0.5", "score 2"))
    os.kill(read_number(tmp_path / "pid"), signal.SIGKILL)
    wait_any([struck])
    assert "SIGKILL" in str(struck.future.exception())
    wait_any([other])
    assert other.future.result().scores.tolist() == [1.0, 2.0]
    assert [order(runner, f"lock {tmp_path / 'pid'}") for _ in range(4)] == [[1.0]] * 4


def test_a_worker_that_dies_while_idle_is_replaced_before_the_next_call(
    process_runner, order, gone
):
    runner = process_runner()
    (first,) = order(runner, "pid")
    os.kill(int(first), signal.SIGKILL)
    assert gone(int(first))
    end = time.monotonic() + 20
    while not (runner.children and first not in {child.pid for child in runner.children}):
        assert time.monotonic() < end
        time.sleep(0.01)
    (second,) = order(runner, "pid")
    assert second != first


def test_a_worker_that_dies_in_every_setup_is_not_started_again_and_again(
    process_runner, order, tmp_path
):
    doomed, starts = tmp_path / "doomed", tmp_path / "starts"
    runner = process_runner(options={"doomed": str(doomed), "starts": str(starts)})
    assert order(runner, "score 1") == [1.0]
    doomed.write_text("")
    assert "code 3" in str(order(runner, "exit 3"))
    errors = [str(order(runner, "score 1")) for _ in range(50)]
    assert all("its worker exited with code 7 while it was set up" in error for error in errors)
    assert "the next try is in" in errors[-1]
    assert runner.exhausted
    assert len(starts.read_text()) <= 3
    doomed.unlink()
    end = time.monotonic() + 20
    while (answer := order(runner, "score 1")) != [1.0]:
        assert time.monotonic() < end, answer
        time.sleep(0.05)
    assert not runner.exhausted


def test_a_worker_that_scribbles_into_the_connection_fails_its_call_and_is_replaced(
    process_runner, order
):
    runner = process_runner()
    error = order(runner, "scribble")
    assert isinstance(error, ContractError)
    assert "is too long, or no answer at all" in str(error)
    assert order(runner, "score 1") == [1.0]


def test_a_worker_that_reads_nothing_is_killed_by_whoever_waits_next(
    process_runner, order, gone, monkeypatch
):
    monkeypatch.setattr("verl_core.rewards.execution.process._STUCK_SECONDS", 0.1)
    runner = process_runner(timeout=0.5)
    (pid,) = order(runner, "pid")
    os.kill(int(pid), signal.SIGSTOP)
    large = {"large": ["x" * 10_000_000]}  # more than the connection holds
    assert isinstance(order(runner, "score 1", columns=large), ProviderTimeout)
    assert order(runner, "score 1") == [1.0]
    assert gone(int(pid))


def test_killed_workers_leave_no_process_no_descriptor_and_no_shared_memory(
    process_runner, order, our_descriptors
):
    runner = process_runner(timeout=0.05, workers=2)
    runner.setup()
    before, threads = our_descriptors(), threading.active_count()
    pids = set()
    for turn in range(20):
        deed = ("sleep", "exit 3", "kill", "crash")[turn % 4]
        assert isinstance(order(runner, deed), ProviderError)
        pids |= {child.pid for child in list(runner.children)}
    runner.setup()
    end = time.monotonic() + 20
    while (len(runner.children) < 2 or our_descriptors() > before) and time.monotonic() < end:
        time.sleep(0.01)
    assert our_descriptors() <= before
    assert threading.active_count() <= threads
    for child in runner.children:
        assert "/dev/shm" not in Path(f"/proc/{child.pid}/maps").read_text()
    runner.close()
    ours = psutil.Process().children(recursive=True)
    assert not [process for process in ours if process.pid in pids]
    assert not [process for process in ours if process.status() == psutil.STATUS_ZOMBIE]


def test_when_every_call_times_out_each_fails_and_none_scores(process_runner, order):
    runner = process_runner(timeout=0.1)
    runner.setup()
    errors = [order(runner, "sleep") for _ in range(4)]
    assert [type(error) for error in errors] == [ProviderTimeout] * 4
