"""Signals of an operator, and ends from within: the last whole step is kept, and ``state.json``
says how the run ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.trainer.conftest import ends_in_step, state_of
from verl_core.config import load_run_config
from verl_core.trainer import checkpoint
from verl_core.trainer.finish import finish, note_failure
from verl_core.trainer.interrupt import Interrupt, stops, stops_raise, unstopped
from verl_core.trainer.setup import Session
from verl_core.trainer.train import train
from verl_reward_sdk import VerlRewardError

HERE = os.getpid()

#: A reward that says each step in which it is called, and takes its time for it.
NODE = """
import pathlib
import time
from verl_core.trainer.reward import RewardNode


class Slow(RewardNode):
    def __init__(self, pause):
        self.pause = pause

    def compute_reward(self, batch):
        pathlib.Path("called").open("a").write("x")
        time.sleep(self.pause)
        return batch["response_mask"].sum(-1).float()
"""
ENDING = """
import sys
from verl_core.dataflow import Node


class Ends(Node):
    def __init__(self, code):
        self.code = code

    def run(self, batch):
        if batch.step == 2:
            sys.exit(self.code)
        return {}
"""


@pytest.fixture
def slow_run(tiny_run):
    (tiny_run.folder / "slow_node.py").write_text(NODE, "utf-8")
    node = {"node_class": "slow_node.Slow", "init_kwargs": {"pause": 0.5}}
    tiny_run.config["reward"].append({"type": "slow", **node})
    tiny_run.config["trainer"] |= {"eval_before": False, "eval_after": False}
    tiny_run.config["trainer"]["checkpoint_every"] = 0
    return tiny_run


def started(run, *settings, **options):
    """The command as a process, in its first step."""
    process = subprocess.Popen(
        run.command(*settings),
        cwd=run.folder,
        env=run.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    while not (run.folder / "called").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("numbers", [(signal.SIGHUP, signal.SIGHUP), (signal.SIGTERM,)])
def test_a_hangup_ends_the_step_checkpoints_and_writes_the_report(slow_run, numbers):
    """The system and the shell each send one when ssh goes away."""
    with started(slow_run, "trainer.steps=200") as process:
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.1)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    folder = slow_run.folder / "runs" / "tiny"
    assert state_of(folder)["status"] == "stopped"
    assert checkpoint.latest(folder).step == state_of(folder)["step"] >= 1
    assert (folder / "report" / "index.html").is_file()
    assert "--resume" in said


def test_under_nohup_a_hangup_is_not_heard(slow_run):
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with started(slow_run, "trainer.steps=3", preexec_fn=ignore) as process:
        process.send_signal(signal.SIGHUP)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert state_of(slow_run.folder / "runs" / "tiny")["step"] == 3


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_run_that_is_stopped_before_its_first_step_leaves_no_folder(slow_run, number):
    process = subprocess.Popen(
        slow_run.command(),
        cwd=slow_run.folder,
        env=slow_run.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        for line in process.stdout:
            if "loading models" in line:
                break
        process.send_signal(number)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert list((slow_run.folder / "runs").iterdir()) == []


@pytest.mark.parametrize(("times", "code", "status"), [(1, 0, "finished"), (2, 130, "stopped")])
def test_ctrl_c_while_the_end_is_written_lets_it_be_written_and_twice_stops_at_once(
    slow_run, times, code, status
):
    with started(slow_run, "trainer.steps=1") as process:
        for line in process.stdout:
            if line.startswith("saving the model"):
                break
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            for line in process.stdout:
                if line.startswith("stopping"):
                    break
        said, _ = process.communicate(timeout=120)
    assert process.returncode == code, said
    folder = slow_run.folder / "runs" / "tiny"
    assert state_of(folder)["status"] == status
    assert checkpoint.latest(folder).step == 1


# -- what is heard when --


def test_hangups_are_never_the_second_signal_that_stops_at_once():
    said = []
    with Interrupt(said.append) as interrupt:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            os.kill(HERE, number)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(HERE, signal.SIGINT)
    assert len(said) == 2


def test_signals_are_given_back_and_an_ignored_hangup_stays_ignored():
    before = {number: signal.getsignal(number) for number in stops()}
    with stops_raise(), Interrupt(print):
        assert signal.getsignal(signal.SIGHUP) != before[signal.SIGHUP]
    assert {number: signal.getsignal(number) for number in stops()} == before
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stops()
        with stops_raise():
            os.kill(HERE, signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_outside_of_training_each_is_ctrl_c_but_not_in_what_takes_no_time(number):
    with stops_raise():
        with unstopped():
            os.kill(HERE, number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(HERE, number)


# -- ends from within --


def let_step_2_exit(tiny_run, code):
    ends_in_step(tiny_run, ENDING, code=code)
    tiny_run.config["trainer"] |= {"checkpoint_every": 0, "eval_before": False}


@pytest.mark.parametrize("code", [0, 3, "text"])
def test_code_that_calls_exit_ends_the_run_as_an_error_that_keeps_the_step(tiny_run, code):
    let_step_2_exit(tiny_run, code)
    done = tiny_run.run()
    assert done.returncode == 1, done.stderr
    assert f"called sys.exit({code!r})" in done.stderr
    assert "Traceback" not in done.stderr
    folder = tiny_run.folder / "runs" / "tiny"
    assert state_of(folder)["status"] == "failed"
    assert "sys.exit" in state_of(folder)["error"]
    assert checkpoint.latest(folder).step == 1


def test_a_checkpoint_that_cannot_be_written_hides_no_error(tiny_run, fresh_imports, capsys):
    let_step_2_exit(tiny_run, 7)
    cfg = load_run_config(tiny_run.write())
    with Session(cfg, plain=True) as run:
        (run.folder.path / "checkpoints").write_text("in the way", "utf-8")
        with pytest.raises(VerlRewardError, match=r"sys.exit\(7\)"):
            train(run)
    assert "the last whole step is not saved: " in capsys.readouterr().out


def test_a_report_that_fails_leaves_no_run_that_seems_to_go_on(tiny_run):
    """``report`` is a file: its folder cannot be made. The way on is said, and works."""
    tiny_run.config["trainer"] |= {"steps": 1, "eval_before": False}
    cfg = load_run_config(tiny_run.write())
    with Session(cfg, plain=True) as run:
        folder = run.folder.path
        (folder / "report").write_text("in the way", "utf-8")
        outcome = train(run)
        with pytest.raises(VerlRewardError, match="report could not be written") as caught:
            finish(run, outcome, again="again")
        note_failure(run, caught.value, again="again")
    assert state_of(folder)["status"] == "failed"
    assert "report could not be written" in state_of(folder)["error"]
    (folder / "report").unlink()
    done = tiny_run.run("--resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert state_of(folder)["status"] == "finished"
