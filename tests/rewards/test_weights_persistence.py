"""The store's file: restarts, resumed runs, several processes, kills in the middle of a write."""

from __future__ import annotations

import itertools
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from verl_core.rewards.persistence import StoreBusy, StoreError
from verl_core.rewards.schedules import Linear
from verl_core.rewards.weights import StaleRevision, WeightStore
from verl_reward_sdk.errors import ConfigError

THREE = {"accuracy": 1.0, "tone": 1.0, "compliance": 1.0}


def test_a_reopened_store_keeps_revision_weights_pins_and_history(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "demo" / "weights.db"
    first = WeightStore({"a": Linear(2.0, 0.0, 10), "b": 1.0}, run_id="r", path=path)
    first.update({"a": 5, "b": 0.1}, author="李", reason="投诉率")
    kept, log = first.snapshot(), first.history()
    first.close()

    again = WeightStore({"a": Linear(2.0, 0.0, 10), "b": 1.0}, run_id="r", path=path)
    assert again.snapshot() == kept
    assert again.history() == log
    assert again.update({"b": 1}, author="li").revision == 3
    assert again.unpin("a", author="li").schedules["a"] == Linear(2.0, 0.0, 10).as_dict()
    again.close()


def test_a_store_without_a_run_id_goes_on_with_the_files_run(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    first = WeightStore(THREE, path=path)
    first.update({"tone": 2}, author="li")
    first.close()
    again = WeightStore(THREE, path=path)
    assert again.run_id == first.run_id
    assert again.snapshot().weights["tone"] == 2.0
    again.close()


def test_a_resumed_run_replays_each_steps_revision(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    config = {"a": Linear(2.0, 0.0, 8), "b": 1.0}
    first = WeightStore(config, run_id="r", path=path)
    ran = []
    for step in range(1, 7):
        ran.append(first.lease(step))
        if step in (2, 4):
            first.update({"b": step}, author="li")
    first.update({"b": 9}, author="li")
    first.close()

    resumed = WeightStore(config, run_id="r", path=path)
    replayed = [resumed.lease(step) for step in range(3, 5)]
    while_replaying = resumed.update({"a": 7}, author="wang")
    replayed += [resumed.lease(step) for step in range(5, 7)]
    assert replayed == ran[2:]
    assert while_replaying.effective_step == 7
    new = resumed.lease(7)
    assert (new.weights["a"], new.weights["b"], new.revision) == (7.0, 9.0, 5)
    resumed.close()


def test_the_live_store_wins_over_a_changed_config(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "weights.db"
    WeightStore(THREE, run_id="r", path=path).close()
    with caplog.at_level(logging.WARNING):
        again = WeightStore(THREE | {"tone": 3.0}, run_id="r", path=path)
    assert again.snapshot().revision == 1
    assert again.snapshot().weights["tone"] == 1.0
    assert "reward.tone.weight is 3.0 in the config now" in caplog.text
    again.close()


def test_new_and_gone_mounts_become_a_revision_of_the_config(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    first = WeightStore({"a": 1.0, "b": 1.0}, run_id="r", path=path)
    first.update({"a": 5}, author="li")
    first.lease(1)
    first.close()

    again = WeightStore({"a": 1.0, "c": Linear(0.0, 1.0, 4)}, run_id="r", path=path)
    now = again.snapshot()
    assert (now.revision, now.author, now.effective_step) == (3, "config", 2)
    assert now.reason == "added: c; removed: b"
    assert now.pinned == ("a",)
    replayed = again.lease(1)
    assert (replayed.revision, dict(replayed.weights)) == (2, {"a": 5.0, "c": 0.25})
    assert dict(again.rollback(1, author="li").weights) == {"a": 1.0, "c": 0.5}
    again.close()


def test_a_new_run_in_the_same_file_starts_from_its_config_with_a_higher_revision(
    tmp_path: Path,
) -> None:
    path = tmp_path / "weights.db"
    old = WeightStore(THREE, run_id="old", path=path)
    old.lease(1)
    old.update({"tone": 9}, author="li")
    old.close()
    new = WeightStore(THREE, run_id="new", path=path)
    started = new.snapshot()
    assert (started.revision, started.effective_step, started.weights["tone"]) == (3, 0, 1.0)
    assert new.lease(1).revision == 3
    assert [entry.run_id for entry in new.history()] == ["new", "old", "old"]
    new.close()
    old = WeightStore(THREE, run_id="old", path=path)
    assert old.snapshot().revision == 2
    assert old.update({"tone": 2}, author="li").revision == 4
    old.close()


def test_settings_that_the_policy_refuses_now_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    first = WeightStore({"a": 1.0}, run_id="r", path=path)
    first.update({"a": 0.5}, author="li")
    first.close()

    def whole(weights: object) -> None:
        if weights["a"] % 1:  # type: ignore[index]
            raise ValueError("not whole")

    with pytest.raises(ConfigError, match="revision 2, with which the run would go on") as refused:
        WeightStore({"a": 1.0}, run_id="r", path=path, check=whole)
    assert refused.value.file == str(path)


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


@pytest.mark.parametrize("statement", ["UPDATE revisions SET author = 'x'", "DELETE FROM leases"])
def test_the_audit_log_and_the_leases_are_append_only(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "weights.db"
    weights = WeightStore(THREE, run_id="r", path=path)
    weights.lease(1)
    other = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="never"):
        other.execute(statement)
    other.close()
    weights.close()


def test_a_write_is_durable_before_it_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    weights = WeightStore(THREE, run_id="r", path=path)
    connection = weights._log._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    weights.close()


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    weights = WeightStore(THREE, run_id="r", path=path)
    weights._log._connection.execute("PRAGMA max_page_count = 1")  # as a full disk answers

    def fill() -> None:
        for value in range(1, 500):
            weights.update({"tone": value}, author="li", reason="x" * 1999)

    with pytest.raises(StoreError, match="full; nothing was changed"):
        fill()
    assert weights.history(1)[0].revision == weights.snapshot().revision
    weights.close()


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all, but long enough to look like a header" * 20]
)
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.db"
    path.write_bytes(content)
    if not content:  # an empty file is an empty database
        WeightStore(THREE, run_id="r", path=path).close()
        return
    with pytest.raises(ConfigError, match="cannot keep the weights in it") as refused:
        WeightStore(THREE, run_id="r", path=path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(ConfigError, match="a database of some other program"):
        WeightStore(THREE, run_id="r", path=path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    WeightStore(THREE, run_id="r", path=path).close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(ConfigError, match="its format is 99"):
        WeightStore(THREE, run_id="r", path=path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot keep the weights in it"):
        WeightStore(THREE, run_id="r", path=tmp_path / "file" / "weights.db")


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


def test_a_weight_that_is_none_any_more_is_told_with_its_revision(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    store = WeightStore({"a": 1.0}, run_id="r", path=path)
    store._log._connection.execute(
        "INSERT INTO revisions VALUES (2, 'r', 't', 'x', NULL, 0, ?)",
        ('{"a": {"base": 1e300, "pin": null}}',),
    )
    with pytest.raises(StoreError, match=r"revision 2 .*1e\+300 is above 1000000"):
        store.lease(1)
    store.close()


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
