"""The store's file: restarts, resumed runs, what is refused as one, and what is never lost."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from verl_core.rewards.persistence import StoreError
from verl_core.rewards.schedules import Linear
from verl_core.rewards.weights import WeightStore
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
    assert "reward.tone.weight is 3 in the config now" in caplog.text
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
