"""What the report says of weights that moved, sums, parts of the answers, and checks left out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

from verl_core.trainer import jsonl
from verl_core.trainer.report import figures, theme
from verl_core.trainer.report.build import build_report
from verl_core.trainer.report.data import load_run
from verl_core.trainer.report.page import render
from verl_core.trainer.report.summary import print_summary
from verl_core.trainer.report.verdict import standing_still

MakeRun = Callable[..., Path]


def summary_of(run: Path) -> str:
    (run / "report").mkdir(exist_ok=True)
    (run / "report" / "report.json").write_bytes(jsonl.encode(build_report(load_run(run))))
    target = io.StringIO()
    print_summary(run, console=Console(file=target, width=100))
    return " ".join(target.getvalue().split())


def configure(run: Path, **keys: Any) -> None:
    path = run / "config.yaml"
    config = yaml.safe_load(path.read_text("utf-8")) | keys
    path.write_text(yaml.safe_dump(config), "utf-8")


def change_lines(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for line in lines:
        change(line)
    path.write_bytes(b"".join(jsonl.encode(line) for line in lines))


NORMALISED = {"type": "a", "weight": 1.0, "normalize": "group"}
GATE = {"type": "g", "role": "gate", "penalty": -1.0}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"fusion": {"policy": "lexicographic"}, "reward": [{"type": "a"}]}, "lexicographic"),
        ({"reward": NORMALISED}, "normalised"),
        ({"reward": [NORMALISED, GATE, {"type": "b", "weight": 0}]}, "normalised"),
        ({"reward": [NORMALISED, {"type": "b"}]}, ""),
        ({"reward": [NORMALISED], "eval_reward": {"reward": [{"type": "a"}]}}, ""),
        (
            {
                "fusion": {"policy": "lexicographic"},
                "eval_reward": {"reward": [{"type": "a"}], "fusion": {"policy": "min"}},
            },
            "",
        ),
        ({}, ""),
    ],
)
def test_a_fused_reward_that_stands_still_is_known_by_its_config(
    config: dict[str, Any], why: str
) -> None:
    said = standing_still(config)
    assert why in said
    assert bool(said) is bool(why)


def test_its_rise_is_not_asked_for_and_the_other_checks_are(make_run: MakeRun) -> None:
    run = make_run(steps=2, prompts=40)
    asked = [c["name"] for c in build_report(load_run(run))["verdict"]["checks"]]
    configure(run, fusion={"policy": "lexicographic"})
    report = build_report(load_run(run))
    assert [c["name"] for c in report["verdict"]["checks"]] == asked[1:]
    said = "The built-in check “fused reward rises” is left out: lexicographic ranks"
    assert any(sentence.startswith(said) for sentence in report["story"])
    assert said in summary_of(run)
    assert said in render(report, {})


def test_a_reward_that_went_up_by_a_weight_alone_is_told_as_such(make_run: MakeRun) -> None:
    run = make_run(steps=4, changed_at=3)
    for name in ("before", "after"):
        (run / "eval" / f"{name}.jsonl").unlink()
    said = summary_of(run)
    assert "have the same weights (tone 1 → 0.5, conversion 0.5 → 1): a change of a weight" in said
    assert "From step 3 on, mia changed the weights while it trained: tone 1 → 0.5" in said


def test_weights_that_stay_are_not_spoken_of(make_run: MakeRun) -> None:
    run = make_run(steps=4, changed_at=None)
    for name in ("before", "after"):
        (run / "eval" / f"{name}.jsonl").unlink()
    assert "same weights" not in summary_of(run)


def test_a_normalised_score_stands_beside_its_raw_one_and_the_multiplier_in_the_sum(
    make_run: MakeRun,
) -> None:
    run = make_run(steps=2, prompts=40)

    def normalise(row: dict[str, Any]) -> None:
        tone = row["explain"]["mounts"]["tone"]
        tone |= {"raw": 0.6, "normalised": 0.875, "contribution": 1.05, "multiplier": 0.2}

    for name in ("before", "after"):
        change_lines(run / "eval" / f"{name}.jsonl", normalise)
    page = render(build_report(load_run(run)), {})
    assert '<td class="n">0.875<span class="ci">raw 0.600</span></td>' in page
    assert '<td class="n">× 1.2<span class="ci">1 + λ 0.2</span></td>' in page
    assert "+1.050" in page


def test_multipliers_stand_in_the_table_of_mounts(make_run: MakeRun) -> None:
    run = make_run(steps=3, prompts=40)
    change_lines(
        run / "metrics.jsonl",
        lambda line: line.update({"reward/tone/multiplier": 0.1 * (line["step"] - 1)}),
    )
    report = build_report(load_run(run))
    tone = next(mount for mount in report["mounts"] if mount["name"] == "tone")
    assert (tone["first_multiplier"], tone["last_multiplier"]) == (0.0, 0.2)
    page = render(report, {})
    assert '<span class="ci">+ λ 0 → 0.2</span>' in page
    assert "multiplier λ" in page
    assert report["training"]["series"]["reward/tone/multiplier"] == [0.0, 0.1, 0.2]


def test_parts_of_the_answers_have_rows_of_their_own(make_run: MakeRun) -> None:
    run = make_run(steps=2, prompts=40)
    for side, value in (("before", 0.25), ("after", 0.5)):
        found = {
            "step": 0,
            "eval/reward/by_source/best_of_2/fused/mean": value,
            "eval/reward/by_source/a/b/fused/mean": 2 * value,
            "eval/reward/by_source/a/b/tone/mean": 9.0,
            "eval/reward/best_of/4/fused/mean": 3 * value,
        }
        (run / "eval" / f"{side}.json").write_text(json.dumps(found), "utf-8")
    report = build_report(load_run(run))
    assert [(one["label"], one["before"], one["after"]) for one in report["splits"]] == [
        ("data source best_of_2", 0.25, 0.5),
        ("data source a/b", 0.5, 1.0),
        ("the best of 4 answers", 0.75, 1.5),
    ]
    assert "fused, data source a/b 0.500 1.000 +0.500" in summary_of(run)
    page = render(report, {})
    assert "the best of 4 answers" in page
    assert "9.000" not in page
    (run / "eval" / "before.jsonl").unlink()
    assert "reward after training: data source best_of_2 0.500, data" in summary_of(run)


@pytest.mark.parametrize("count", [1, 40])
def test_names_beside_a_panel_never_take_its_room(tmp_path: Path, count: int) -> None:
    """A mount without any score, beside one with scores far from 0; and mounts without number."""
    names = [f"mount{i}" for i in range(count)]
    lines = [
        {"step": step, "weights/revision": 1, "weights/len": 1.0, "reward/len/mean": 100.0 + step}
        | {f"weights/{name}": 1.0 for name in names}
        for step in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(map(jsonl.encode, lines)))
    run = load_run(tmp_path)
    colours = {name: theme.mount_colour(i) for i, name in enumerate(run.mounts)} | {"fused": "ink"}
    with theme.drawing():
        drawn = figures.rewards(run, colours, theme.NARROW)
        theme.settle(drawn)
    heights = np.array([axes.get_position().height for axes in drawn.axes])
    assert heights.min() > 0.1
    assert heights.sum() < 1.0
