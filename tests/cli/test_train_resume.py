"""``verl-reward train --resume``: what a check says of it, and what the display remembers."""

from __future__ import annotations

import re


def test_a_check_says_from_where_a_run_would_go_on_or_that_nothing_is_left(tiny_run) -> None:
    folder = tiny_run.train("trainer.steps=2")
    check = ("--check", "--resume", "runs/tiny")
    done = tiny_run.run("trainer.steps=5", *check)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[-1]
    assert said.strip() == "goes on from runs/tiny/checkpoints/step_000002, with step 3 of 5"
    done = tiny_run.run("trainer.steps=2", *check)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[-1]
    assert "nothing is left to train: runs/tiny/checkpoints/step_000002 holds step 2" in said
    (folder / "checkpoints").rename(folder / "elsewhere")
    done = tiny_run.run(*check)
    assert done.returncode == 2
    assert "holds no complete checkpoint" in done.stderr


def test_a_resumed_run_compares_its_first_step_with_the_last_one_before(tiny_run) -> None:
    tiny_run.train("trainer.steps=2")
    done = tiny_run.run("trainer.steps=3", "--resume", "runs/tiny")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("step 3/3  ")]
    assert re.match(r"step 3/3  fused -?\d\.\d{3} \([+-]\d\.\d{3}\)", line)
