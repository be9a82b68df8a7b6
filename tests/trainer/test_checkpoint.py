"""Checkpoints: whole or not there, the newest kept, the one before safe whatever happens."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from safetensors.torch import load_file

from verl_core.trainer import checkpoint
from verl_core.trainer.checkpoint import CheckpointError
from verl_reward_sdk import ConfigError


@pytest.fixture
def save(tiny_models, tmp_path):
    """``save(step, keep=2, **objects)`` into a run's folder, which is `save.folder`."""
    models = tiny_models()

    def write(step, keep=2, **objects):
        return checkpoint.save(
            write.folder,
            step,
            policy=models.policy,
            tokenizer=models.tokenizer,
            objects=objects,
            info={"run_id": "r1", "autocast": "none"},
            keep=keep,
        )

    write.folder, write.models = tmp_path / "run", models
    write.folder.mkdir()
    return write


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_what_was_saved_comes_back_with_its_step(save):
    saved = save(7, optimizer={"x": torch.arange(3), "lr": 0.5})
    found = checkpoint.latest(save.folder)
    assert found == saved
    assert found.info() == {"run_id": "r1", "autocast": "none", "step": 7}
    state = found.load("optimizer")
    assert state["lr"] == 0.5
    assert state["x"].tolist() == [0, 1, 2]
    weights = load_file(found.policy / "model.safetensors")
    assert torch.equal(weights["model.norm.weight"], save.models.policy.model.norm.weight.detach())
    assert (found.policy / "tokenizer.json").is_file()


def test_the_newest_are_kept_and_steps_are_ordered_as_numbers(save):
    for step in (9, 10, 1_000_000):
        save(step)
    assert names(save.folder) == ["step_000010", "step_1000000"]
    assert [c.step for c in checkpoint.checkpoints(save.folder)] == [10, 1_000_000]
    save(1_000_001, keep=0)  # the last one is never removed
    assert names(save.folder) == ["step_1000001"]


def test_a_step_that_is_there_is_not_written_again(save):
    first = save(1, x=1)
    stamp = (first.path / "trainer.json").stat().st_mtime_ns
    assert save(1, x=2).load("x") == 1
    assert (first.path / "trainer.json").stat().st_mtime_ns == stamp


def test_what_a_killed_process_left_is_no_checkpoint_and_is_swept_away(save):
    left = save.folder / "checkpoints" / ".draft_000004"
    (left / "policy").mkdir(parents=True)
    (save.folder / "checkpoints" / "step_000009").mkdir()
    (save.folder / "checkpoints" / "notes.txt").write_text("mine", "utf-8")
    save(3)
    assert checkpoint.latest(save.folder).step == 3
    assert not left.exists()


def test_a_run_without_a_whole_checkpoint_says_so(tmp_path):
    with pytest.raises(ConfigError, match="holds no complete checkpoint") as caught:
        checkpoint.latest(tmp_path)
    assert "without --resume" in str(caught.value)


@pytest.mark.parametrize("kind", [OSError, Exception])  # tokenizers raises the bare one
def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before_and_no_draft(save, kind):
    save(1)
    unwritable = {"lock": _Unpicklable(kind)}
    with pytest.raises(
        CheckpointError, match="checkpoint of step 2 could not be written"
    ) as caught:
        save(2, **unwritable)
    assert "earlier checkpoints are intact" in str(caught.value)
    assert "GiB are free" in str(caught.value)
    assert names(save.folder) == ["step_000001"]
    assert checkpoint.latest(save.folder).step == 1


class _Unpicklable:
    """Fails as a full disk does, in the middle of the file."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        raise self.kind(28, "No space left on device")


def test_a_checkpoint_runs_no_code_when_it_is_loaded(save, monkeypatch):
    monkeypatch.chdir(save.folder)
    saved = save(1, x=1)
    torch.save(_RunsCode(), saved.path / "x.pt")
    with pytest.raises(CheckpointError, match=r"x\.pt cannot be read") as caught:
        saved.load("x")
    assert isinstance(caught.value.__cause__, pickle.UnpicklingError)
    assert not (save.folder / "ran").exists()


class _RunsCode:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def delete(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("harm", "name", "words"),
    [
        (delete, "optimizer.pt", "optimizer.pt is missing"),
        (cut, "optimizer.pt", "optimizer.pt has "),
        (cut, "policy/model.safetensors", "policy/model.safetensors has "),
        (delete, "policy/config.json", "policy/config.json is missing"),
        (cut, "trainer.json", "trainer.json cannot be read"),
    ],
)
def test_a_damaged_one_is_named_and_the_one_before_is_taken(save, harm, name, words):
    save(1, optimizer={"x": 1})
    newest = save(2, optimizer={"x": 2})
    assert checkpoint.latest(save.folder) == newest
    harm(newest.path / name)
    told = []
    assert checkpoint.latest(save.folder, told.append).step == 1
    assert len(told) == 1
    assert f"step_000002 is damaged: {words}" in told[0]
    save(2, optimizer={"x": 3})  # the run comes there again: it is written anew
    assert checkpoint.latest(save.folder).load("optimizer") == {"x": 3}


def test_where_all_are_damaged_each_is_named(save):
    for saved in [save(1, x=1), save(2, x=2)]:
        delete(saved.path / "x.pt")
    words = r"are damaged: step_000002 .*; step_000001 .*x\.pt is missing"
    with pytest.raises(ConfigError, match=words) as one:
        checkpoint.latest(save.folder)
    assert "without --resume" in str(one.value)


def test_a_damaged_one_takes_no_place_of_a_whole_one(save):
    save(1)
    delete(save(2, x=1).path / "x.pt")
    save(3)
    assert names(save.folder) == ["step_000001", "step_000003"]


def test_what_is_left_of_a_checkpoint_that_was_taken_apart_is_written_again(save):
    saved = save(3)
    (saved.path / "trainer.json").unlink()
    assert checkpoint.checkpoints(save.folder) == []
    save(3)
    assert checkpoint.latest(save.folder).step == 3
