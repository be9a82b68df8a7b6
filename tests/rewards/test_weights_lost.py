"""A store whose file was lost, put back from an old copy, or damaged."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from verl_core.rewards.persistence import StoreError
from verl_core.rewards.revisions import KeptWeights, Record
from verl_core.rewards.schedules import Linear
from verl_core.rewards.weights import WeightStore
from verl_reward_sdk.errors import ConfigError

CONFIG = {"a": Linear(2.0, 0.0, 8), "b": 1.0}


def _ran(path: Path, steps: int) -> KeptWeights:
    """A run of `steps` steps with a change after each; what its checkpoint keeps."""
    store = WeightStore(CONFIG, run_id="r", path=path)
    for step in range(1, steps + 1):
        store.lease(step)
        store.update({"b": step}, author="li", reason="more")
    record = Record.from_dict(store.newest().as_dict())
    store.close()
    return KeptWeights(step=steps, revision=record.revision, record=record)


def _other_run(path: Path) -> None:
    store = WeightStore(CONFIG, run_id="other", path=path)
    for value in range(2, 12):
        store.update({"b": value}, author="li")
    store.close()


def _gone(path: Path) -> None:
    path.unlink()


def _gone_but_for_its_log(path: Path) -> None:
    """The file alone is moved away; what a killed process left beside it stays."""
    path.with_name("weights.db-wal").write_bytes(_killed_log(path.parent / "other"))
    path.unlink()


def _killed_log(folder: Path) -> bytes:
    store = WeightStore(CONFIG, run_id="r", path=folder / "weights.db")
    store.update({"b": 9}, author="li")
    log = (folder / "weights.db-wal").read_bytes()  # as it is before the store is closed
    store.close()
    assert log
    return log


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _of_another_run(path: Path) -> None:
    path.unlink()
    _other_run(path)


def _without_revisions(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("DROP TRIGGER revisions_stay")
        file.execute("DELETE FROM revisions")


@pytest.mark.parametrize(
    "harm", [_gone, _gone_but_for_its_log, _empty, _of_another_run, _without_revisions]
)
def test_a_lost_file_goes_on_with_the_checkpoints_weights_above_every_revision(
    tmp_path: Path, harm
) -> None:
    path = tmp_path / "weights.db"
    kept = _ran(path, 3)
    harm(path)
    again = WeightStore(CONFIG, run_id="r", path=path, kept=kept)
    now = again.snapshot()
    assert now.revision == (12 if harm is _of_another_run else 5)
    assert (now.pinned, now.weights["b"], now.weights["a"]) == (("b",), 3.0, 1.25)
    assert now.step == 3
    entry = again.history(1)[0]
    assert entry.author == "checkpoint"
    assert "weights.db was lost" in str(entry.reason)
    assert "revision 4 from the checkpoint of step 3" in str(entry.reason)
    assert again.lost is not None
    assert f"as revision {now.revision}" in again.lost
    assert again.lease(4).revision == now.revision
    again.close()

    third = WeightStore(CONFIG, run_id="r", path=path, kept=kept)  # told once
    assert third.lost is None
    assert third.snapshot().revision == now.revision
    third.close()


def test_an_old_copy_of_the_file_is_seen_and_its_leases_are_replayed(tmp_path: Path) -> None:
    path, copy = tmp_path / "weights.db", tmp_path / "copy.db"
    _ran(path, 2)
    shutil.copy(path, copy)
    store = WeightStore(CONFIG, run_id="r", path=path)
    store.lease(3)
    store.update({"a": 7, "b": 8}, author="li")
    kept = KeptWeights(3, 6, Record.from_dict(store.newest().as_dict()))
    store.close()
    shutil.copy(copy, path)
    again = WeightStore(CONFIG, run_id="r", path=path, kept=kept)
    assert again.lost is not None
    assert "its newest revision is 3, and the run had 6" in again.lost
    assert [again.lease(step).revision for step in (1, 2, 3)] == [1, 2, 7]
    assert dict(again.lease(4).weights) == {"a": 7.0, "b": 8.0}
    again.close()


def test_a_file_with_another_history_of_the_run_is_not_taken_for_its_own(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    kept = _ran(path, 3)
    path.unlink()
    store = WeightStore(CONFIG, run_id="r", path=path)
    for value in range(40, 46):
        store.update({"b": value}, author="wang")
    store.close()
    again = WeightStore(CONFIG, run_id="r", path=path, kept=kept)
    assert again.lost is not None
    assert "its revision 4 is not the one that the run had" in again.lost
    assert (again.snapshot().revision, again.snapshot().weights["b"]) == (8, 3.0)
    again.close()


def test_a_file_that_is_whole_is_taken_as_it_is_and_later_changes_stand(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    kept = _ran(path, 3)
    store = WeightStore(CONFIG, run_id="r", path=path)
    store.update({"a": 5}, author="li")
    store.close()
    again = WeightStore(CONFIG, run_id="r", path=path, kept=kept)
    assert again.lost is None
    assert (again.snapshot().revision, again.snapshot().weights["a"]) == (5, 5.0)
    again.close()


def test_mounts_that_came_and_went_are_noted_and_an_old_checkpoint_gives_the_configs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "weights.db"
    kept = _ran(path, 2)
    path.unlink()
    again = WeightStore({"b": 1.0, "c": 0.5}, run_id="r", path=path, kept=kept)
    assert dict(again.snapshot().weights) == {"b": 2.0, "c": 0.5}
    assert str(again.history()[0].reason).endswith("added: c; removed: a")
    again.close()
    path.unlink()
    bare = WeightStore(CONFIG, run_id="r", path=path, kept=KeptWeights(2, 3))
    assert (bare.snapshot().revision, bare.snapshot().weights["b"]) == (4, 1.0)
    assert bare.lost is not None
    assert "the checkpoint of step 2 keeps no weights" in bare.lost
    bare.close()


def test_the_recovered_weights_are_judged_from_the_next_step_on(tmp_path: Path) -> None:
    """At step 0 the schedule alone would be refused: nothing would be left beside the pin of 0."""
    path, config = tmp_path / "weights.db", {"a": Linear(0.0, 1.0, 4), "b": 1.0}
    store = WeightStore(config, run_id="r", path=path)
    store.lease(3)
    store.update({"b": 0}, author="li")
    kept = KeptWeights(3, 2, store.newest())
    store.close()
    path.unlink()
    again = WeightStore(config, run_id="r", path=path, kept=kept)
    assert dict(again.lease(4).weights) == {"a": 1.0, "b": 0.0}
    again.close()


# -- damaged rows --

SETTINGS = "UPDATE revisions SET settings = "
ODD = {
    "no JSON": SETTINGS + "'{'",
    "a list": SETTINGS + "'[]'",
    "a number for a mount": SETTINGS + """'{"a": 3}'""",
    "no pin": SETTINGS + """'{"a": {"base": 1.0}}'""",
    "a pin as text": SETTINGS + """'{"a": {"base": 1.0, "pin": "2"}}'""",
    "a pin of NaN": SETTINGS + """'{"a": {"base": 1.0, "pin": NaN}}'""",
    "a base as a list": SETTINGS + """'{"a": {"base": [1], "pin": null}}'""",
    "deep": SETTINGS + "'" + "[" * 5000 + "'",
    "settings as bytes": SETTINGS + "x'ff00'",
    "settings as a number": SETTINGS + "7",
    "an author as bytes": "UPDATE revisions SET author = x'ff'",
    "a reason as a number": "UPDATE revisions SET reason = x'ff'",
    "a time as bytes": "UPDATE revisions SET time = x'00'",
    "a step ahead": "UPDATE revisions SET effective_step = 100",
    "a step below 0": "UPDATE revisions SET effective_step = -1",
    "a step as text": "UPDATE revisions SET effective_step = 'soon'",
    "a lease of nothing": "UPDATE leases SET revision = 77",
    "a lease as text": "UPDATE leases SET revision = 'x'",
    "a leased step as text": "UPDATE leases SET step = 'x'",
    "no leases": "DROP TABLE leases",
    "no number is left": (
        "INSERT INTO revisions SELECT 9223372036854775807, run_id, time, author, reason,"
        " effective_step, settings FROM revisions LIMIT 1"
    ),
}


@pytest.mark.parametrize("statement", ODD.values(), ids=ODD.keys())
def test_a_damaged_row_is_an_error_that_names_the_file(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "weights.db"
    store = WeightStore({"a": 1.0}, run_id="r", path=path)
    store.lease(1)
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        for trigger in ("revisions_are_final", "leases_are_final"):
            file.execute(f"DROP TRIGGER {trigger}")
        file.execute(statement)

    def use() -> None:
        with contextlib.closing(WeightStore({"a": 1.0}, run_id="r", path=path)) as again:
            for step in (1, 2):
                again.lease(step)
            again.history()
            again.update({"a": 2}, author="li")

    with pytest.raises(StoreError) as caught:
        use()
    said = str(caught.value)
    assert str(path) in said
    assert "put it back from a copy, or move it away" in said


def test_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(ConfigError, match="not a database") as caught:
        WeightStore({"a": 1.0}, run_id="r", path=path)
    assert "move it away" in str(caught.value.hint)


def test_a_file_that_is_held_when_a_run_starts_is_said_to_be_held(tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    WeightStore({"a": 1.0}, run_id="r", path=path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(ConfigError, match="another program holds it") as caught:
        WeightStore({"a": 1.0}, run_id="r", path=path, busy_seconds=0.05)
    assert "wait for that program or end it" in str(caught.value.hint)
    assert "verl-reward wrote" not in str(caught.value.hint)
    other.close()
    WeightStore({"a": 1.0}, run_id="r", path=path).close()


def test_a_disk_too_full_for_the_file_is_said_as_such(tmp_path: Path) -> None:
    """A real file system without room."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        with pytest.raises(ConfigError, match="make room on its disk"):
            WeightStore(CONFIG, run_id="r", path=tmp_path / "weights.db")
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=False)
