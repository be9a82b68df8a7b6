"""A run whose ``state.json`` was lost, torn or edited goes on from its checkpoints."""

from __future__ import annotations

import json
import shutil

import pytest

from verl_core.cli.main import main
from verl_core.trainer.checkpoint import latest
from verl_core.trainer.run_folder import RunFolder
from verl_core.trainer.state_file import STATE, read_state, rebuilt, seconds_since, state_damage
from verl_reward_sdk import ConfigError


def damaged(state):
    """What becomes of the file, by how it was damaged."""
    whole = json.loads(state)
    return {
        "a list": b"[1, 2]",
        "null": b"null",
        "empty": b"",
        "torn": state[:40],
        "not UTF-8": b'{"run_id": "\xff\xfe"}',
        "nested": b"[" * 100_000,
        "another's": b"{}",
        "a number for its start": json.dumps({**whole, "started": 5}).encode(),
        "numbers for names": json.dumps({**whole, "run_id": 7, "name": []}).encode(),
    }


KINDS = [*sorted(damaged(b"{}")), "missing"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_model_dir):
    """A run of two steps, to be copied."""
    from tests.conftest import TinyRun

    run = TinyRun(tmp_path_factory.mktemp("trained"), tiny_model_dir)
    run.config["trainer"] |= {"steps": 2, "eval_before": False, "eval_after": False}
    run.train()
    return run


@pytest.fixture
def damage(trained, tiny_run):
    """``damage(kind)``: the trained run's folder, as that of `tiny_run`, with its state so."""
    tiny_run.config["trainer"] = {**trained.config["trainer"], "steps": 3}

    def make(kind):
        folder = tiny_run.folder / "runs" / "tiny"
        shutil.copytree(trained.folder / "runs" / "tiny", folder)
        state = (folder / STATE).read_bytes()
        (folder / STATE).unlink()
        if kind != "missing":
            (folder / STATE).write_bytes(damaged(state)[kind])
        return folder, json.loads(state)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_is_opened_and_what_the_file_said_is_found_again(damage, kind):
    folder, before = damage(kind)
    opened = RunFolder.open(folder)
    assert opened.run_id == before["run_id"]
    assert str(folder / STATE) in opened.warning
    assert before["run_id"] in opened.warning
    opened.note(status="running")
    after = json.loads((folder / STATE).read_text("utf-8"))
    assert (after["run_id"], after["name"]) == (before["run_id"], "tiny")
    assert state_damage(folder) is None
    assert RunFolder.open(folder).warning == ""
    assert seconds_since(after["started"]) >= 0


@pytest.mark.parametrize("kind", ["torn", "a number for its start", "missing"])
def test_the_newest_run_is_found_though_its_state_is_damaged(damage, tiny_run, kind):
    folder, _ = damage(kind)
    assert RunFolder.newest(tiny_run.folder / "runs", "tiny").path == folder.resolve()


@pytest.mark.parametrize("kind", ["torn", "a number for its start"])
def test_a_run_with_a_damaged_state_is_resumed_and_told_so(damage, tiny_run, kind, capsys):
    folder, before = damage(kind)
    assert main(["train", str(tiny_run.write()), "--resume", "--check"]) == 0
    assert "warning: " in capsys.readouterr().out
    assert state_damage(folder) is not None  # a check mends nothing
    assert main(["train", str(tiny_run.write()), "--plain", "--resume", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"{STATE} cannot be used (" in said
    assert "resuming tiny after step 2" in said
    after = json.loads((folder / STATE).read_text("utf-8"))
    assert (after["run_id"], after["status"], after["step"]) == (before["run_id"], "finished", 3)
    assert after["train_seconds"] >= 0
    assert latest(folder).step == 3


@pytest.mark.parametrize("kind", ["torn", "a list", "not UTF-8"])
def test_without_a_checkpoint_it_is_refused_with_the_file_and_the_way_out(damage, kind):
    folder, _ = damage(kind)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ConfigError, match="is no run's folder") as caught:
        RunFolder.open(folder)
    assert STATE in str(caught.value)
    assert "without --resume" in str(caught.value)


def test_a_folder_in_its_place_is_named_and_moved_away_it_is_made_again(damage):
    folder, before = damage("missing")
    (folder / STATE).mkdir()
    with pytest.raises(ConfigError, match="move it away") as caught:
        RunFolder.open(folder)
    assert str(folder / STATE) in str(caught.value)
    (folder / STATE).rmdir()
    assert RunFolder.open(folder).run_id == before["run_id"]


def test_a_file_that_is_lost_while_the_run_trains_is_written_whole_again(tmp_path):
    folder = RunFolder.create(tmp_path, "shop")
    before = read_state(folder.path)
    (folder.path / STATE).unlink()
    folder.note(step=4)
    assert read_state(folder.path) == {**before, "step": 4}


def test_the_start_of_a_run_is_that_of_its_first_step(damage, read_jsonl):
    folder, _ = damage("torn")
    assert rebuilt(folder)["started"] == read_jsonl(folder / "metrics.jsonl")[0]["time"]


def test_facts_that_are_none_are_left_out_and_others_are_kept(tmp_path):
    facts = {"run_id": "x", "name": 3, "started": 5, "step": "two", "mine": [1], "pid": True}
    (tmp_path / STATE).write_text(json.dumps(facts), "utf-8")
    assert read_state(tmp_path) == {"run_id": "x", "mine": [1]}
