"""The store's file in several hands: processes that write at once, that are killed in the middle of
a write, or that hold it."""

from __future__ import annotations

import itertools
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from verl_core.rewards.persistence import StoreBusy
from verl_core.rewards.weights import StaleRevision, WeightStore

THREE = {"accuracy": 1.0, "tone": 1.0, "compliance": 1.0}


def test_two_stores_on_one_file_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    one = WeightStore(THREE, run_id="r", path=path)
    two = WeightStore(THREE, run_id="r", path=path)
    one.update({"tone": 2}, author="one")
    assert two.refresh().weights["tone"] == 2.0
    with pytest.raises(StaleRevision):
        two.update({"tone": 3}, author="two", if_revision=1)
    merged = two.update({"accuracy": 3}, author="two")
    assert dict(merged.weights) == {"accuracy": 3.0, "tone": 2.0, "compliance": 1.0}
    assert one.lease(1).revision == two.lease(1).revision == 3
    one.close()
    two.close()


_WRITER = """
import sys
from pathlib import Path
from verl_core.rewards.weights import WeightStore
store = WeightStore({"a": 1.0, "b": 1.0, "c": 1.0}, run_id="r", path=Path(sys.argv[1]))
value = store.snapshot().weights["a"]
print("ready", flush=True)
while True:
    value += 1
    store.update({"a": value, "b": value, "c": value}, author="w", reason=str(int(value)))
    print(int(value), flush=True)
"""


def test_a_kill_in_the_middle_of_writing_leaves_the_old_or_the_new_revision(
    tmp_path: Path,
) -> None:
    path = tmp_path / "weights.db"
    before = 0
    for delay in (0.0, 0.003, 0.011, 0.023, 0.041):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        said = writer.stdout.read().split("\n")
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
        answered = [int(line) for line in said[:-1]]

        weights = WeightStore({"a": 1.0, "b": 1.0, "c": 1.0}, run_id="r", path=path)
        now = weights.snapshot()
        log = weights.history()
        weights.close()
        assert len(set(now.weights.values())) == 1  # never a mix
        assert now.weights["a"] >= max(answered, default=1)  # what was answered is kept
        assert [entry.revision for entry in log] == list(range(now.revision, 0, -1))
        assert all(entry.before == older.after for entry, older in itertools.pairwise(log))
        assert now.revision >= before
        before = now.revision


_MANY = """
import sys
from pathlib import Path
from verl_core.rewards.weights import WeightStore
name, path = sys.argv[1:]
store = WeightStore({"a": 1.0, "b": 1.0}, run_id="r", path=Path(path))
for value in range(1, 31):
    store.update({name: value}, author=name)
    store.lease(value)
"""


def test_processes_that_open_and_write_one_file_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    writers = [
        subprocess.Popen([sys.executable, "-c", _MANY, name, str(path)]) for name in ("a", "b")
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    weights = WeightStore({"a": 1.0, "b": 1.0}, run_id="r", path=path)
    log = weights.history()
    assert weights.snapshot().revision == len(log) == 61
    assert dict(weights.snapshot().weights) == {"a": 30.0, "b": 30.0}
    assert all(entry.before == older.after for entry, older in itertools.pairwise(log))
    leases = [weights.lease(step).revision for step in range(1, 31)]
    assert leases == sorted(leases)
    weights.close()


def test_a_second_store_on_one_file_is_told_and_the_first_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run" / "weights.db"
    one = WeightStore({"a": 1.0}, run_id="r", path=path)
    assert caplog.records == []
    two = WeightStore({"a": 1.0}, run_id="r", path=path)
    assert f"{path} is open elsewhere too" in caplog.text
    one.close()
    two.close()
    caplog.clear()
    three = WeightStore({"a": 1.0}, run_id="r", path=path)
    other = WeightStore({"a": 1.0}, run_id="r", path=tmp_path / "other" / "weights.db")
    assert caplog.records == []
    for store in (three, other):
        store.close()


def test_a_file_that_is_meant_to_be_shared_warns_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "weights.db"
    workers = [WeightStore({"a": 1.0}, run_id="r", path=path, shared=True) for _ in range(2)]
    server = WeightStore({"a": 1.0}, run_id="r", path=path)
    late = WeightStore({"a": 1.0}, run_id="r", path=path, shared=True)
    assert caplog.records == []
    server.update({"a": 3.0}, author="test")
    assert [store.lease(1).weights["a"] for store in (*workers, late)] == [3.0, 3.0, 3.0]
    another = WeightStore({"a": 1.0}, run_id="r", path=path)
    assert "is open elsewhere too" in caplog.text
    for store in (*workers, server, late, another):
        store.close()


def test_the_sign_of_a_killed_process_is_taken_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "weights.db"
    script = (
        "import sys, time, pathlib; from verl_core.rewards.weights import WeightStore\n"
        "s = WeightStore({'a': 1.0}, run_id='r', path=pathlib.Path(sys.argv[1]))\n"
        "print('open', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    second = WeightStore({"a": 1.0}, run_id="r", path=path)
    assert "is open elsewhere too" in caplog.text
    second.close()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    caplog.clear()
    third = WeightStore({"a": 1.0}, run_id="r", path=path)
    assert caplog.records == []
    third.close()


def _held(path: Path) -> sqlite3.Connection:
    """Another program's connection in the middle of a write."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_a_step_waits_for_a_held_file_longer_than_a_change_does_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "weights.db"
    store = WeightStore({"a": 1.0}, run_id="r", path=path, busy_seconds=0.05)
    other = _held(path)
    with pytest.raises(StoreBusy, match=r"another program holds .*nothing was changed"):
        store.update({"a": 2.0}, author="x")
    leased: list[float] = []
    step = threading.Thread(target=lambda: leased.append(store.lease(1).weights["a"]))
    step.start()
    while not caplog.records:
        time.sleep(0.01)
    time.sleep(0.4)  # some more tries, which say nothing
    assert step.is_alive()
    other.execute("ROLLBACK")
    other.close()
    step.join()
    assert leased == [1.0]
    [said] = caplog.messages
    assert str(path) in said
    assert "the run waits for it, 60 s at most" in said
    store.close()


def test_a_step_does_not_wait_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    store = WeightStore({"a": 1.0}, run_id="r", path=path, busy_seconds=0.05, lease_seconds=0.2)
    other = _held(path)
    with pytest.raises(StoreBusy, match=r"weights\.db, and did for 0\.05 s"):
        store.lease(1)
    other.close()
    assert store.lease(1).revision == 1
    store.close()
