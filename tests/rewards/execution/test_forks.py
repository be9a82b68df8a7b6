"""A fork of a process whose mounts are in use: it has none of their threads and workers."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_KIT = """
import asyncio, os, signal, sys, warnings
warnings.simplefilter("ignore")  # Python's own, of forks beside threads
sys.path.insert(0, {here!r})
os.environ["XDG_RUNTIME_DIR"] = {runtime!r}
import misbehaving
from verl_core.rewards.execution import Limits, make_runner, wait_any
from verl_core.rewards.execution.recipe import Recipe
from verl_core.rewards.execution.slots import HostSlots
from verl_core.rewards.execution.work import Work
from verl_reward_sdk import AsyncRewardProvider, RewardBatch, RewardProvider
from verl_reward_sdk.provider import ProviderConfig

class Now(RewardProvider):
    def score(self, batch): return [0.5]

class Later(AsyncRewardProvider):
    async def score(self, batch): return [0.5]

def runner_of(execution, slots=None):
    cls = Later if execution == "async" else Now
    recipe = Recipe("m", misbehaving.make, ({{}},))
    work = Work(Limits(600.0, 600.0), recipe=recipe, slots=slots)
    build = lambda: cls(ProviderConfig())
    return make_runner(execution, name="m", provider=build(), build=build, work=work, path="r")

def ask(runner):
    batch = RewardBatch(sample_ids=["a"], prompts=["b"], responses=["score 0.5"])
    call = runner.submit(batch)
    wait_any([call])
    error = call.future.exception()
    result = error or call.future.result()
    print(error or [float(score) for score in getattr(result, "scores", result)], flush=True)

def forked(then):
    child = os.fork()
    if child == 0:
        try:
            then()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture
def script(tmp_path):
    """Runs a script; gives its lines."""

    def run(text):
        kit = _KIT.format(here=str(Path(__file__).parent), runtime=str(tmp_path))
        done = subprocess.run(
            [sys.executable, "-c", kit + textwrap.dedent(text)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("execution", ["thread", "async", "process"])
def test_every_call_in_a_fork_fails_at_once_and_the_parent_goes_on(script, execution):
    lines = script(
        f"""
        runner = runner_of({execution!r})
        ask(runner)
        def then():
            ask(runner)
            print(runner.exhausted)
            try:
                runner.setup()
            except Exception as error:
                print(error)
            runner.close()
        forked(then)
        ask(runner)
        runner.close()
        """
    )
    assert lines[0] == lines[-1] == "[0.5]"
    what = "workers" if execution == "process" else "threads"
    for line in (lines[1], lines[3]):
        assert line.startswith(f"its {what} belong to another process: this one is a fork")
        assert "Make the engine in the process that scores, after the fork" in line
    assert lines[2] == "True"


@pytest.mark.parametrize("execution", ["thread", "async", "process"])
def test_a_runner_that_nobody_used_before_the_fork_works_in_it(script, execution):
    lines = script(
        f"""
        runner = runner_of({execution!r}, HostSlots("x", 1))
        def then():
            ask(runner)
            runner.close()
        forked(then)
        ask(runner)
        runner.close()
        """
    )
    assert lines == ["[0.5]", "[0.5]"]


def test_a_fork_neither_holds_the_slots_of_its_parent_nor_waits_behind_its_threads(script):
    lines = script(
        """
        slots = HostSlots("x", 1)
        slot = slots.acquire(1.0)
        waiting = slots.line_up(lambda: None)
        assert waiting.take() is None
        down, up = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.read(down[0], 1)
            HostSlots("x", 1).acquire(30.0).release()
            slot.release()  # a copy: it gives nothing back
            os.write(up[1], b"x")
            os.read(down[0], 1)
            os._exit(0)
        slot.release()
        waiting.leave()
        mine = slots.acquire(5.0)  # while the fork lives
        mine.release()
        os.write(down[1], b"x")
        os.read(up[0], 1)
        print("had")
        os.write(down[1], b"x")
        os.waitpid(child, 0)
        """
    )
    assert lines == ["had"]
