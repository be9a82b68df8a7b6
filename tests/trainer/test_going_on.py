"""A run that goes on: what its report, its state and its config say; what is refused, or told."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime, timedelta

import pytest
import yaml

from tests.trainer.conftest import ends_in_step, state_of
from verl_core.cli.main import main
from verl_core.config import load_run_config
from verl_core.trainer.evaluate import evaluated_step
from verl_core.trainer.finish import finish, note_failure
from verl_core.trainer.interrupt import Interrupt
from verl_core.trainer.setup import Session
from verl_core.trainer.state_file import seconds_trained
from verl_core.trainer.train import train

BOOM = """
import os
import signal
from pathlib import Path

from verl_core.dataflow import Node


class Ends(Node):
    def __init__(self, at, how):
        self.at, self.how = at, how

    def run(self, batch):
        if batch.step == self.at and not Path("mended").exists():
            if self.how == "bug":
                raise ValueError("boom")
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        return {}
"""


@pytest.fixture
def ending(tiny_run):
    """``ending(at, how)``: in step `at` the tiny run raises (``bug``) or hears Ctrl-C twice, until
    a file ``mended`` is there; gives its command's end."""
    tiny_run.config["trainer"] |= {"eval_before": False, "eval_after": False, "steps": 2}

    def run(at, how, *arguments):
        ends_in_step(tiny_run, BOOM, at=at, how=how)
        return tiny_run.run(*arguments)

    return run


def config_of(folder):
    return yaml.safe_load((folder / "config.yaml").read_text("utf-8"))


def edit_state(folder, **facts):
    (folder / "state.json").write_text(json.dumps({**state_of(folder), **facts}), "utf-8")


def finished(run, *overrides, resume=None, stop_at=None):
    """Train and finish in this process, as if Ctrl-C were pressed in step `stop_at`."""
    cfg = load_run_config(run.write(), list(overrides))
    with Session(cfg, resume=resume, plain=True) as session, Interrupt(print) as interrupt:
        record = session.record

        def heard(step, metrics):
            record(step, metrics)
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

        session.record = heard
        finish(session, train(session, interrupt), again="again")
        return session.folder.path


# -- the report --


def test_an_evaluation_of_an_earlier_step_is_not_the_one_after_training(tiny_run, capsys):
    folder = finished(tiny_run, "trainer.steps=2")
    report = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    assert report["earlier"] is None
    was = report["headline"]
    assert was["kind"] == "held_out"
    capsys.readouterr()

    finished(tiny_run, "trainer.steps=9", resume=folder, stop_at=4)
    assert state_of(folder)["step"] == 4
    assert evaluated_step(folder / "eval" / "after.jsonl") == 2  # it lies there still
    report = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    assert report["headline"]["kind"] == "training"
    assert report["evaluation"]["before"]["prompts"] == 6
    assert report["evaluation"]["after"] is None
    assert report["contributions"] == []
    assert report["earlier"]["step"] == 2
    assert report["earlier"]["after"] == pytest.approx(was["after"])
    said = "It was last evaluated after step 2, and the model is at step 4 now: after step 2 the"
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in (folder / "report" / "index.html").read_text("utf-8")

    finished(tiny_run, "trainer.steps=5", resume=folder)
    report = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    assert (report["earlier"], report["headline"]["kind"]) == (None, "held_out")


# -- another config's run --


def test_the_run_of_another_name_is_refused_unless_the_name_is_given(tiny_run):
    tiny_run.train("trainer.steps=1", "name=shop")
    for command in (["--resume", "runs/shop"], ["--check", "--resume", "runs/shop"]):
        done = tiny_run.run("trainer.steps=2", *command)
        assert done.returncode == 2, done.stdout
        assert "name: the run in runs/shop is named 'shop', and this config 'tiny'" in done.stderr
        assert "name=shop" in done.stderr
    assert state_of(tiny_run.folder / "runs" / "shop")["step"] == 1
    done = tiny_run.run("trainer.steps=2", "name=shop", "--resume", "runs/shop")
    assert done.returncode == 0, done.stderr
    assert state_of(tiny_run.folder / "runs" / "shop")["step"] == 2


def test_changed_mounts_and_settings_are_told_in_a_line_and_others_are_not(tiny_run, capsys):
    folder = tiny_run.train("trainer.steps=1")
    capsys.readouterr()
    tiny_run.train("trainer.steps=2", "rollout.batch_rows=8", "server.port=1", resume=folder)
    assert "warning" not in capsys.readouterr().out

    style, overlap, guard = tiny_run.config["reward"]
    style = {**style, "init_kwargs": {"rules": "other.yaml"}}
    (tiny_run.folder / "other.yaml").write_bytes((tiny_run.folder / "rules.yaml").read_bytes())
    (tiny_run.folder / "more.jsonl").write_bytes((tiny_run.folder / "prompts.jsonl").read_bytes())
    tiny_run.config["reward"] = [style, {**overlap, "plugin": "rouge"}, {**guard, "type": "watch"}]
    changes = ("seed=7", "rollout.n=2", "algorithm.clip_ratio=0.3", "data.train=more.jsonl")
    settings = ("trainer.steps=3", *changes)
    told = []
    for words in (["--check"], ["--plain"]):
        arguments = [str(tiny_run.write()), *settings[:-1], *words, "--resume", str(folder)]
        more = f"data.train={tiny_run.folder / 'more.jsonl'}"
        assert main(["train", *arguments, more]) == 0
        out = capsys.readouterr().out
        told += [line.strip() for line in out.splitlines() if "the config is not the one" in line]
    assert len(told) == 2
    for part in (
        "mounts added: watch; mounts removed: guard",
        "mount style: other init_kwargs; mount overlap is rouge, was chrf; seed is 7, was 0;",
        "rollout.n is 2, was 4; algorithm.clip_ratio is 0.3, was 0.2",
        "more.jsonl, was",
    ):
        assert all(part in line for line in told), told


# -- state.json --


def test_the_time_between_sessions_is_not_counted(tiny_run):
    folder = finished(tiny_run, "trainer.steps=1")
    state = state_of(folder)
    assert 0 <= state["train_seconds"] <= 600
    assert "session" not in state
    edit_state(folder, started="2020-01-01T00:00:00+00:00", train_seconds=1000.0)
    finished(tiny_run, "trainer.steps=2", resume=folder)
    assert 1000 <= state_of(folder)["train_seconds"] <= 1600
    page = (folder / "report" / "index.html").read_text("utf-8")
    assert "min" in page.split(" of wall time, evaluations included")[0][-20:]


@pytest.mark.parametrize("known", [None, 50.0])
def test_a_session_that_was_killed_counts_up_to_its_last_step(tiny_run, read_jsonl, known):
    folder = tiny_run.train("trainer.steps=2")  # it notes no end
    last = read_jsonl(folder / "metrics.jsonl")[-1]["time"]
    began = (datetime.fromisoformat(last) - timedelta(seconds=100)).isoformat()
    edit_state(folder, session=began, train_seconds=known)
    assert seconds_trained(folder) == 100 + (known or 0)
    finished(tiny_run, "trainer.steps=3", resume=folder)
    assert 100 + (known or 0) <= state_of(folder)["train_seconds"] <= 700 + (known or 0)


def test_of_a_run_from_before_sessions_were_noted_the_seconds_stand(tiny_run):
    folder = finished(tiny_run, "trainer.steps=1")
    edit_state(folder, train_seconds=12.0)
    assert seconds_trained(folder) == 12.0


def test_an_error_is_gone_once_the_run_goes_on(tiny_run, ending):
    done = ending(2, "bug")
    assert done.returncode == 1
    folder = tiny_run.folder / "runs" / "tiny"
    assert state_of(folder)["error"] == "ValueError: boom"
    (tiny_run.folder / "mended").touch()
    done = ending(2, "bug", "--resume")
    assert done.returncode == 0, done.stderr
    state = state_of(folder)
    assert state["status"] == "finished"
    assert "error" not in state


# -- config.yaml --


def test_the_config_in_the_folder_has_the_weights_that_are_in_force(tiny_run, read_jsonl):
    schedule = {"linear": {"from": 3.0, "to": 0.5, "steps": 10}}
    tiny_run.config["reward"][1]["weight"] = schedule
    folder = tiny_run.train("trainer.steps=1", "reward.overlap.weight=2")
    tiny_run.train("trainer.steps=2", resume=folder)
    weights = {mount["name"]: mount.get("weight") for mount in config_of(folder)["reward"]}
    assert weights == {"style": 1.0, "overlap": 2.0, "guard": None}
    rows = read_jsonl(folder / "eval" / "after.jsonl")
    assert {row["explain"]["mounts"]["overlap"]["weight"] for row in rows} == {2.0}


def test_a_schedule_in_force_stands_there_as_it_is_written(tiny_run):
    schedule = {"linear": {"from": 3.0, "to": 0.5, "steps": 10, "start": 0}}
    tiny_run.config["reward"][1]["weight"] = schedule
    folder = tiny_run.train("trainer.steps=1")
    tiny_run.train("trainer.steps=2", "reward.overlap.weight=2", resume=folder)
    assert config_of(folder)["reward"][1]["weight"] == schedule
    assert load_run_config(folder / "config.yaml").reward[1].setting() == schedule


# -- how it ends --


def test_ctrl_c_twice_is_a_stop_by_the_user(tiny_run, ending):
    done = ending(2, "user")
    assert done.returncode == 130
    lines = done.stderr.splitlines()
    assert lines[-2] == "Stopped at once by you. To go on from the checkpoint of step 1:"
    assert lines[-1].endswith("--resume runs/tiny")
    state = state_of(tiny_run.folder / "runs" / "tiny")
    assert state["status"] == "stopped"
    assert "error" not in state
    assert state["train_seconds"] >= 0


def test_ctrl_c_twice_before_a_checkpoint_says_that_there_is_none(tiny_run, ending):
    done = ending(1, "user")
    assert done.returncode == 130
    said = done.stderr.splitlines()[-1]
    assert said.startswith("Stopped at once by you. The run in ")
    assert said.endswith("has no checkpoint to go on from: start it anew.")
    assert "cause" not in done.stderr


def test_behind_the_traceback_of_a_bug_stands_the_command_to_go_on(tiny_run, ending):
    done = ending(2, "bug")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert "Traceback (most recent call last):" in lines
    assert lines[-3] == "ValueError: boom"
    assert lines[-1].strip().startswith("verl-reward train")
    assert done.stderr.count("ValueError: boom") == 1


def test_a_stop_whose_note_cannot_be_written_is_told_too(tiny_run, capsys):
    cfg = load_run_config(tiny_run.write(), ["trainer.steps=1", "trainer.eval_before=false"])
    with Session(cfg, plain=True) as run:
        (run.folder.path / ".state.json.draft").mkdir()
        note_failure(run, KeyboardInterrupt(), again="again")
    assert "That it was stopped is written nowhere: " in capsys.readouterr().err


def test_a_finished_run_that_goes_on_says_that_nothing_is_left(tiny_run):
    tiny_run.train("trainer.steps=2")
    done = tiny_run.run("trainer.steps=2", "--resume", "runs/tiny")
    assert done.returncode == 0, done.stderr
    said = "nothing is left to train: runs/tiny/checkpoints/step_000002 holds step 2"
    assert said in done.stdout
    assert "resuming" not in done.stdout
    done = tiny_run.run("trainer.steps=3", "--resume", "runs/tiny")
    assert "nothing is left" not in done.stdout
    assert "resuming tiny after step 2" in done.stdout
