"""Workers and the process that started them: whatever ends it ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def parent(tmp_path):
    """A script with a runner of one worker, which writes its number into ``pid`` and then does
    what `then` says; in a session of its own."""
    started = []

    def start(then: str, **options) -> subprocess.Popen[str]:
        script = tmp_path / "parent.py"
        script.write_text(
            textwrap.dedent(
                f"""
                import os, pathlib, signal, sys, threading, time
                sys.path.insert(0, {str(HERE)!r})
                import misbehaving
                from verl_core.rewards.execution import Limits, wait_any
                from verl_core.rewards.execution.process import ProcessRunner
                from verl_core.rewards.execution.recipe import Recipe
                from verl_reward_sdk import RewardBatch

                # No `if __name__ == "__main__"`: workers never run the script again.
                def ask(order):
                    batch = RewardBatch(sample_ids=["a"], prompts=["b"], responses=[order])
                    return runner.submit(batch)

                runner = ProcessRunner(Recipe("m", misbehaving.make, ({{}},)), Limits(60, 60))
                """
            )
            + textwrap.dedent(then)
        )
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()
        elif process.stdout is not None:
            process.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker looks once a second")
@pytest.mark.parametrize("busy", ["hold_the_gil", "idle"])
def test_workers_end_when_their_parent_is_killed(parent, read_number, gone, tmp_path, busy):
    process = parent(
        f"""
        runner.setup()
        pid = next(iter(runner.children)).pid
        if {busy!r} != "idle":
            ask({busy!r})
        pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(pid))
        time.sleep(600)
        """
    )
    worker = read_number(tmp_path / "pid")
    os.kill(process.pid, signal.SIGKILL)
    assert gone(worker)


def test_a_mount_that_nobody_closed_never_holds_up_the_exit_and_leaves_nobody(
    parent, read_number, gone, tmp_path
):
    process = parent(
        f"""
        call = ask("beget {tmp_path / "child"} away sleep")
        while not os.path.exists({str(tmp_path / "child")!r}):
            time.sleep(0.01)
        print("done")
        """
    )
    assert process.wait(60) == 0
    assert process.communicate()[0].splitlines()[-1] == "done"
    assert gone(read_number(tmp_path / "child"))


def test_ctrl_c_in_the_terminal_reaches_the_parent_and_not_the_workers(
    parent, read_number, tmp_path
):
    process = parent(
        f"""
        runner.setup()
        pid = next(iter(runner.children)).pid
        try:
            pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
            time.sleep(600)
        except KeyboardInterrupt:
            call = ask("pid")
            wait_any([call])
            print("the same" if call.future.result().scores[0] == pid else "another")
            runner.close()
        """
    )
    assert read_number(tmp_path / "pid") == process.pid
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does to its foreground group
    assert process.wait(60) == 0
    assert process.communicate()[0].splitlines()[-1] == "the same"


def test_it_may_be_used_from_a_thread_of_a_daemonic_process(parent):
    process = parent(
        """
        import multiprocessing
        def work():
            call = ask("score 0.5")
            wait_any([call])
            print(call.future.result().scores[0])
            runner.close()
        multiprocessing.current_process()._config["daemon"] = True
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """
    )
    assert process.wait(60) == 0
    assert process.communicate()[0].splitlines()[-1] == "0.5"


def test_a_fork_of_the_parent_neither_uses_nor_ends_its_workers(parent):
    process = parent(
        """
        call = ask("pid")
        wait_any([call])
        child = os.fork()
        if child == 0:
            call = ask("score 1")
            print(call.future.exception())
            sys.exit(0)  # runs what is registered for the exit
        os.waitpid(child, 0)
        again = ask("pid")
        wait_any([again])
        print(again.future.result().scores == call.future.result().scores)
        runner.close()
        """
    )
    assert process.wait(60) == 0
    lines = process.communicate()[0].splitlines()
    assert lines[0].startswith("its workers belong to another process: this one is a fork")
    assert lines[1:] == ["[ True]"]
