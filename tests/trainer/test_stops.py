"""How a run ends early: rewards that fail in an evaluation, Ctrl-C anywhere, an error in a step.

From there it goes on to the bits of an unbroken one."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys

import pytest
import torch
from safetensors.torch import load_file

from verl_core.config import load_run_config
from verl_core.trainer import checkpoint
from verl_core.trainer.finish import finish, note_failure
from verl_core.trainer.setup import Session
from verl_core.trainer.train import train
from verl_reward_sdk import ConfigError, RewardError, VerlRewardError

#: A reward and a gate that do what a test says, in `act` and `say`.
PLUGIN = '''
from verl_reward_sdk import RewardProvider, hookimpl

VERL_REWARD_API = 1
act = say = None


class Acts(RewardProvider):
    """As the test says."""

    name = "acts"

    def score(self, batch):
        return [0.5] * len(batch) if act is None else act(batch)


class Says(RewardProvider):
    """As the test says."""

    name = "says"

    def score(self, batch):
        return [1.0] * len(batch) if say is None else say(batch)


@hookimpl
def verl_reward_providers():
    yield Acts
    yield Says
'''
#: A node that raises in step 2, before the update or behind it.
NODE = """
from verl_core.dataflow import Node


class Trouble(Node):
    def __init__(self, kind):
        self.kind = kind

    def run(self, batch):
        if batch.step == 2:
            raise {"value": ValueError, "os": OSError, "deep": RecursionError}[self.kind]("boom")
        return {}
"""


@pytest.fixture
def plugin(tiny_run, plugin_site, monkeypatch):
    """The tiny run with the mounts `acts` and `says`; gives the module whose functions they call.
    Evaluations are made in batches of 5 and of 1 prompt."""
    monkeypatch.setattr("verl_core.trainer.train.time.sleep", lambda seconds: None)
    plugin_site.add(
        "acme",
        rewards=dict.fromkeys(("acts", "says"), "acme_trouble"),
        files={"acme_trouble.py": PLUGIN},
    )
    gate = {"plugin": "says", "role": "gate", "penalty": -1.0, "threshold": {"below": 0.5}}
    tiny_run.config["reward"][1:] = [
        {"type": "acts", "plugin": "acts", "weight": 0.5},
        {"type": "says", **gate},
    ]
    tiny_run.config["rollout"] |= {"batch_rows": 5}
    tiny_run.config["trainer"] |= {"steps": 2, "checkpoint_every": 0}
    sys.modules.pop("acme_trouble", None)
    import acme_trouble

    return acme_trouble


@pytest.fixture
def unbroken(tiny_run, plugin):
    """``unbroken(*overrides)``: the last weights of the same run, in which nothing happens."""

    def weights(*overrides):
        acts, plugin.act = plugin.act, None
        folder = tiny_run.train("name=unbroken", *overrides)
        plugin.act = acts
        return last_weights(folder)

    return weights


def last_weights(folder):
    return load_file(checkpoint.latest(folder).policy / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def files_of(folder):
    """Names in ``eval/``, hidden ones too."""
    found = folder / "eval"
    return sorted(path.name for path in found.iterdir()) if found.is_dir() else []


def steps_of(folder):
    return [found.step for found in checkpoint.checkpoints(folder)]


# -- rewards that fail in an evaluation --


def test_an_evaluation_whose_rewards_failed_once_is_made_again(tiny_run, plugin, read_jsonl):
    failed = []

    def act(batch):
        if not batch.training and batch.step == 2 and not failed:
            failed.append(len(batch))
            raise RuntimeError("down")
        return [0.5] * len(batch)

    plugin.act = act
    tiny_run.config["reward"][1]["on_error"] = "raise"
    folder = tiny_run.train()
    assert failed == [5]
    after = read_jsonl(folder / "eval" / "after.jsonl")
    assert len(after) == 6
    assert all(row["fused"] is not None for row in after)


@pytest.mark.parametrize(
    ("broken_at", "evaluations"),
    [(0, []), (1, ["before"]), (2, ["before", "step_000001"])],
    ids=["before", "on the way", "after"],
)
def test_an_evaluation_that_fails_for_good_leaves_a_checkpoint_to_go_on_from(
    tiny_run, plugin, unbroken, broken_at, evaluations
):
    """Nothing of that evaluation is left; a resumed run makes it."""

    def act(batch):
        if not batch.training and batch.step == broken_at:
            raise RuntimeError("down")
        return [0.5] * len(batch)

    plugin.act = act
    settings = ("trainer.eval_every=1", "trainer.reward_retries=1")
    words = f"evaluation after step {broken_at} may not be used: acts: 6 of 6 rows failed"
    with pytest.raises(RewardError, match=words):
        tiny_run.train(*settings)
    folder = tiny_run.folder / "runs" / "tiny"
    assert steps_of(folder) == [broken_at]
    made = sorted(f"{name}{end}" for name in evaluations for end in (".json", ".jsonl"))
    assert files_of(folder) == made

    plugin.act = None
    tiny_run.train(*settings, resume=folder)
    assert {"before.jsonl", "step_000001.jsonl", "after.jsonl"} <= set(files_of(folder))
    assert same(last_weights(folder), unbroken("trainer.eval_every=1"))


def test_a_blocked_row_alone_in_its_batch_is_blocked_and_left_out_of_the_means(
    tiny_run, plugin, read_jsonl
):
    def say(batch):
        if not batch.training and len(batch) == 1:
            raise RuntimeError("down")
        return [1.0] * len(batch)

    plugin.say = say
    folder = tiny_run.train("trainer.steps=1")
    rows = read_jsonl(folder / "eval" / "after.jsonl")
    assert [row["fused"] is None for row in rows] == [False] * 5 + [True]
    figures = json.loads((folder / "eval" / "after.json").read_text("utf-8"))
    mean = sum(row["fused"] for row in rows[:5]) / 5
    assert math.isclose(figures["eval/reward/fused/mean"], mean, rel_tol=1e-12)
    assert math.isclose(figures["eval/reward/blocked"], 1 / 6)


@pytest.mark.parametrize(("size", "ends"), [(1, False), (5, True)])
def test_max_error_rate_is_of_all_rows_of_an_evaluation(tiny_run, plugin, size, ends):
    """Of 6 rows a half may fail: those of the small batch are 1, of the large one 5."""

    def act(batch):
        if not batch.training and len(batch) == size:
            raise RuntimeError("down")
        return [0.5] * len(batch)

    plugin.act = act
    settings = ("trainer.steps=1", "trainer.reward_retries=0")
    if ends:
        with pytest.raises(RewardError, match=r"acts: 5 of 6 rows failed \(max_error_rate 0.5\)"):
            tiny_run.train(*settings)
    else:
        assert "after.jsonl" in files_of(tiny_run.train(*settings))


# -- Ctrl-C --


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_the_first_evaluation_leaves_a_run_that_goes_on(
    tiny_run, plugin, unbroken, number, capsys
):
    def act(batch):
        os.kill(os.getpid(), number)
        return [0.5] * len(batch)

    plugin.act = act
    cfg = load_run_config(tiny_run.write())
    with Session(cfg, plain=True) as run:
        assert train(run) == "stopped"
        folder = run.folder.path
        finish(run, "stopped", again="train --resume here")
    assert files_of(folder) == []
    assert steps_of(folder) == [0]
    assert (folder / "report" / "index.html").is_file()
    assert json.loads((folder / "state.json").read_text("utf-8"))["status"] == "stopped"
    assert "train --resume here" in capsys.readouterr().out

    plugin.act = None
    tiny_run.train(resume=folder)
    assert {"before.jsonl", "after.jsonl"} <= set(files_of(folder))
    assert same(last_weights(folder), unbroken())


def test_ctrl_c_in_an_evaluation_on_the_way_trains_no_further_step(
    tiny_run, plugin, unbroken, read_jsonl
):
    def act(batch):
        if not batch.training and batch.step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return [0.5] * len(batch)

    plugin.act = act
    settings = ("trainer.eval_every=1", "trainer.steps=3")
    folder = tiny_run.train(*settings)
    assert [line["step"] for line in read_jsonl(folder / "metrics.jsonl")] == [1]
    assert files_of(folder) == ["before.json", "before.jsonl"]
    assert steps_of(folder) == [1]

    plugin.act = None
    tiny_run.train(*settings, resume=folder)
    assert {"step_000001.jsonl", "step_000002.jsonl", "after.jsonl"} <= set(files_of(folder))
    assert same(last_weights(folder), unbroken(*settings))


def test_ctrl_c_in_a_checkpoint_trains_no_further_step(tiny_run, read_jsonl, monkeypatch):
    written = checkpoint.save

    def interrupted(*given, **named):
        os.kill(os.getpid(), signal.SIGINT)
        return written(*given, **named)

    monkeypatch.setattr(checkpoint, "save", interrupted)
    folder = tiny_run.train()
    assert [line["step"] for line in read_jsonl(folder / "metrics.jsonl")] == [1]
    assert steps_of(folder) == [1]


def test_ctrl_c_in_the_last_evaluation_leaves_it_to_be_made_later(tiny_run, plugin):
    def act(batch):
        if not batch.training and batch.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return [0.5] * len(batch)

    plugin.act = act
    folder = tiny_run.train()
    assert steps_of(folder) == [2]
    assert "after.jsonl" not in files_of(folder)
    plugin.act = None
    tiny_run.train(resume=folder)
    assert "after.jsonl" in files_of(folder)


# -- an error in a step --


@pytest.mark.parametrize(
    ("kind", "raised", "stage", "kept"),
    [
        ("value", ValueError, "advantage", [1]),
        ("deep", RecursionError, "advantage", [1]),
        ("os", VerlRewardError, "advantage", [1]),
        ("value", ValueError, "behind", []),
    ],
)
def test_whatever_a_step_raises_the_last_whole_one_is_saved_and_no_half_one(
    tiny_run, plugin, unbroken, fresh_imports, kind, raised, stage, kept
):
    """Behind the update the weights are neither step 1's nor step 2's."""
    (tiny_run.folder / "trouble_node.py").write_text(NODE, "utf-8")
    node = {
        "name": "trouble",
        "node_class": "trouble_node.Trouble",
        "init_kwargs": {"kind": kind},
    }
    flow = {
        "rollout": ["actor"],
        "reward": ["style", "acts"],
        "safety": ["says"],
        "advantage": ["grpo"],
        "update": ["ppo"],
    }
    troubled = {**flow, stage: [*flow.get(stage, ()), node]}
    settings = ("algorithm.kl_coef=0", "trainer.steps=3")
    tiny_run.config["dataflow"] = troubled
    with pytest.raises(raised, match="boom"):
        tiny_run.train(*settings)
    folder = tiny_run.folder / "runs" / "tiny"
    assert steps_of(folder) == kept
    if kept:
        tiny_run.config["dataflow"] = flow
        tiny_run.train(*settings, resume=folder)
        assert same(last_weights(folder), unbroken(*settings))


# -- what is said at the end --

AGAIN = "train run.yaml 'reward.x.safe_globals=[my_node.Head]' --resume 'runs/[/x]'"


def test_the_command_to_go_on_is_said_as_it_is_and_only_where_it_works(tiny_run, capsys):
    cfg = load_run_config(tiny_run.write(), ["trainer.steps=1", "trainer.eval_before=false"])
    with Session(cfg, plain=True) as run:
        note_failure(run, RewardError("down"), again=AGAIN)
        said = capsys.readouterr().err
        assert "--resume" not in said
        assert "start it anew" in said
        train(run)
        note_failure(run, ValueError("a bug"), again=AGAIN)
        assert AGAIN in capsys.readouterr().err
        finish(run, "stopped", again=AGAIN)
        assert AGAIN in capsys.readouterr().out


def test_a_failure_that_cannot_be_noted_is_told_behind_the_command(tiny_run, capsys):
    cfg = load_run_config(tiny_run.write(), ["trainer.steps=1", "trainer.eval_before=false"])
    with Session(cfg, plain=True) as run:
        train(run)
        (run.folder.path / ".state.json.draft").mkdir()  # nothing can be written there
        note_failure(run, OSError(28, "No space left on device"), again=AGAIN)
    said = capsys.readouterr().err
    assert said.index(AGAIN) < said.index("could not be written")


# -- resume --


def test_a_damaged_checkpoint_is_passed_over_and_the_run_ends_in_the_same_bits(tiny_run, capsys):
    folder = tiny_run.train()
    before = last_weights(folder)
    (folder / "checkpoints" / "step_000003" / "optimizer.pt").unlink()
    tiny_run.train(resume=folder)
    said = capsys.readouterr().out
    assert "step_000003 is damaged: optimizer.pt is missing" in said
    assert f"resuming {folder.name} after step 2" in said
    assert checkpoint.latest(folder).step == 3
    assert same(last_weights(folder), before)


def test_a_run_that_was_moved_goes_on_where_it_lies_now(tiny_run):
    folder = tiny_run.train("trainer.steps=1")
    moved = tiny_run.folder / "elsewhere"
    shutil.move(folder, moved)
    assert tiny_run.train("trainer.steps=2", resume=moved) == moved
    assert checkpoint.latest(moved).step == 2


def test_fewer_steps_than_were_trained_are_refused_and_as_many_are_fine(tiny_run):
    folder = tiny_run.train("trainer.steps=2")
    with pytest.raises(ConfigError, match=r"trainer.steps.* of step 2, beyond the last .*: 1"):
        tiny_run.train("trainer.steps=1", resume=folder)
    shutil.rmtree(folder / "eval")
    tiny_run.train("trainer.steps=2", resume=folder)
    assert files_of(folder) == ["after.json", "after.jsonl"]
