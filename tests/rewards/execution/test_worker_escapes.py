"""Worker processes that print without end, and daemons that leave them."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from verl_core.rewards.execution.process_output import MAX_LINES
from verl_reward_sdk import ProviderTimeout

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans on")


def lines_of(caplog, text):
    return [record for record in caplog.records if text in record.getMessage()]


def test_a_worker_that_prints_without_end_dies_at_its_deadline(process_runner, order, gone, caplog):
    runner = process_runner(timeout=0.5)
    (pid,) = order(runner, "pid")
    assert isinstance(order(runner, "flood"), ProviderTimeout)
    assert gone(int(pid))
    assert order(runner, "score 1") == [1.0]
    (told,) = lines_of(caplog, "more lines were not logged")
    assert f"mount m, worker {int(pid)}: " in told.getMessage()
    assert f"at most {MAX_LINES} a call" in told.getMessage()
    assert len(lines_of(caplog, f"worker {int(pid)}: a")) == MAX_LINES


def test_each_call_has_so_many_lines_of_its_own(process_runner, order, caplog):
    runner = process_runner()
    assert order(runner, f"lines {MAX_LINES + 7}") == [1.0]
    assert order(runner, "lines 10") == [1.0]
    runner.close()
    assert len(lines_of(caplog, ": a line")) == MAX_LINES + 10
    (told,) = lines_of(caplog, "more lines were not logged")
    assert ": 7 more lines were not logged" in told.getMessage()


def test_the_last_words_are_the_last_though_they_were_not_logged(process_runner, order):
    runner = process_runner()
    error = order(runner, f"lines {MAX_LINES + 5}", "print", "exit 3")
    assert str(error).startswith("its worker exited with code 3 (its last words: ")
    assert "a line" not in str(error)


@linux
@pytest.mark.parametrize("then", ["sleep", "hold_the_gil"])
def test_a_daemon_without_environment_is_killed_with_its_worker(
    process_runner, order, gone, read_number, tmp_path, then
):
    runner = process_runner(timeout=1.5)
    runner.setup()
    assert isinstance(order(runner, f"daemon {tmp_path / 'pid'} {then}"), ProviderTimeout)
    assert gone(read_number(tmp_path / "pid"))


@linux
def test_a_daemon_without_environment_ends_with_its_mount(
    process_runner, order, gone, read_number, tmp_path
):
    runner = process_runner(options={"closed": str(tmp_path / "closed")})
    assert order(runner, f"daemon {tmp_path / 'pid'} score+1") == [1.0]
    runner.close()
    assert gone(read_number(tmp_path / "pid"))
    assert (tmp_path / "closed").read_text() == "closed"  # it was an orderly end


@linux
def test_dead_orphans_do_not_add_up(tmp_path):
    script = """
        import os, psutil
        from verl_core.rewards.execution import process_worker as worker
        worker._adopt()
        def dead():
            return sum(c.status() == "zombie" for c in psutil.Process().children())
        for _ in range(worker._MAX_DEAD + 9):
            if (child := os.fork()) == 0:
                if os.fork() == 0:
                    os._exit(0)  # nobody's
                os._exit(0)
            os.waitpid(child, 0)
        while dead() < worker._MAX_DEAD + 9:
            pass
        worker._tidy()
        print(dead() - worker._MAX_DEAD)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
