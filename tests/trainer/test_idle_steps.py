"""Steps that trained on nothing, mounts that keep failing, and failures that no rescoring mends."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from verl_core.trainer.display import make_display
from verl_core.trainer.masked import idle_steps, masked_in

NODES = """
import torch
from verl_core.trainer.reward import RewardNode

class Down(RewardNode):
    def compute_reward(self, batch):
        raise RuntimeError("the service is down")

class Long(RewardNode):
    def compute_reward(self, batch):
        return torch.ones(len(batch["responses"]) + 1)
"""
NO_EVALUATION = ("trainer.eval_before=false", "trainer.eval_after=false")


@pytest.fixture
def with_node(tiny_run):
    """``with_node("Down")``: the tiny run, whose reward `tone` is that node."""

    def make(name, **more):
        (tiny_run.folder / "nodes.py").write_text(NODES, "utf-8")
        mount = {"type": "custom", "name": "tone", "node_class": f"nodes.{name}", **more}
        tiny_run.config["reward"] = [mount]
        return tiny_run

    return make


def test_a_run_whose_rows_are_all_masked_says_so_and_why(with_node, read_jsonl):
    run = with_node("Down", max_error_rate=1.0)
    done = run.run("trainer.steps=2", *NO_EVALUATION)
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith(("step 1/2  ", "step 2"))]
    assert len(steps) == 2
    for line in steps:
        assert "tone - (failed 100.0 %)" in line
        assert "nothing to train on: 8 of 8 rows masked: 8 x failed: tone" in line
    said = " ".join(done.stdout.split())
    assert "No figures: no row had a fused reward in any of the 2 steps that were made." in said
    why = "in 2 of 2 steps: 16 of 16 rows masked: 16 x failed: tone."
    assert f"There was nothing to train on {why}" in said
    assert "has not finished a step" not in said
    assert "UserWarning" not in done.stderr
    folder = run.folder / "runs" / "tiny"
    lines = read_jsonl(folder / "metrics.jsonl")
    assert [line["reward/masked_by/failed/tone"] for line in lines] == [8.0, 8.0]
    report = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    assert any(sentence.endswith(why) for sentence in report["story"])
    assert "no step yet" not in (folder / "report" / "index.html").read_text("utf-8")


def test_what_a_deterministic_provider_breaks_is_not_scored_again(with_node):
    run = with_node("Long")
    done = run.run("trainer.steps=1", *NO_EVALUATION)
    assert done.returncode == 1
    assert "tone: 8 of 8 rows failed (max_error_rate 0.5)" in done.stderr
    assert "scoring the same responses again" not in done.stdout
    assert "--resume" in done.stdout + done.stderr


# -- the step's line --


def line_of(*steps):
    target = io.StringIO()
    display = make_display("run", len(steps), console=Console(file=target, width=400), env={})
    for number, figures in enumerate(steps, start=1):
        display.step(number, {"weights/revision": 1, "timing_s/step": 1.0, **figures})
    return target.getvalue().splitlines()[-1]


def test_a_failure_is_told_while_it_lasts_and_an_abstention_where_nothing_is_scored():
    figures = {
        "weights/tone": 1.0, "weights/style": 1.0, "weights/facts": 1.0,
        "reward/tone/mean": 0.4, "reward/tone/failed": 0.25, "reward/tone/abstained": 0.25,
        "reward/style/failed": 0.0, "reward/style/abstained": 1.0,
        "reward/facts/mean": 0.5, "reward/facts/failed": 0.0, "reward/facts/abstained": 0.5,
        "reward/guard/rate": 0.0, "reward/guard/failed": 0.5,
        "reward/masked": 0.25, "perf/update_tokens_per_s": 12.0, "actor/trained_tokens": 9.0,
    }  # fmt: skip
    line = line_of(figures, figures)
    assert "  tone 0.400 (failed 25.0 %)  style - (abstained 100.0 %)  facts 0.500  " in line
    assert "  guard 0.0 % (failed 50.0 %)  " in line
    assert "  masked 25.0 %  update 12 tok/s  " in line


def test_a_multiplier_is_told_when_it_moves_and_not_else():
    figures = {"weights/tone": 1.0, "reward/tone/mean": 0.4}
    at = [figures | {"reward/tone/multiplier": value} for value in (0.0, 0.0375, 0.0375)]
    assert "tone 0.400 (multiplier 0 -> 0.0375)" in line_of(*at[:2])
    assert "multiplier" not in line_of(*at)


MASKED = {"actor/trained_tokens": 0.0, "reward/masked": 0.75, "reward/masked_by/failed/a": 6.0}


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (
            MASKED | {"reward/groups_flat": 1.0},
            "6 of 8 rows masked: 6 x failed: a; the rest scored",
        ),
        (
            MASKED | {"reward/groups_flat": 0.0},
            "6 of 8 rows masked: 6 x failed: a; too few are left",
        ),
        (
            {
                "actor/trained_tokens": 0.0,
                "reward/masked": 1.0,
                "reward/masked_by/abstained/a": 3.0,
                "reward/masked_by/no_reward": 1.0,
            },
            "nothing to train on: 4 of 4 rows masked: 3 x abstained: a, 1 x no mount gave a score",
        ),
        (
            {"actor/trained_tokens": 0.0, "reward/masked": 1.0},
            "nothing to train on: all rows masked",
        ),
    ],
)
def test_a_step_without_an_update_says_what_became_of_its_rows(figures, said):
    assert said in line_of(figures)


def test_figures_of_a_mount_with_the_same_name_are_no_causes():
    assert masked_in([{"reward/masked": 0.5, "reward/masked_by/failed": 0.5}]) is None


def test_idle_steps_are_counted_with_all_their_causes():
    flat = {"actor/trained_tokens": 0.0, "reward/groups_flat": 2.0, "reward/masked": 0.0}
    shut = {"actor/trained_tokens": 0.0, "reward/masked": 1.0, "reward/masked_by/failed/a": 8.0}
    busy = {"actor/trained_tokens": 5.0, "reward/masked": 0.5, "reward/masked_by/failed/a": 4.0}
    assert idle_steps([busy]) is None
    assert idle_steps([flat, shut, busy, shut]) == {
        "steps": 3,
        "of_steps": 4,
        "why": "16 of 16 rows masked: 16 x failed: a;"
        " answers to a prompt scored alike in 1 of them",
    }
