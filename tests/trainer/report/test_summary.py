"""The closing summary in the terminal."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from verl_core.trainer import jsonl
from verl_core.trainer.report.build import build_report
from verl_core.trainer.report.data import load_run
from verl_core.trainer.report.summary import print_summary, talk_command
from verl_core.trainer.report.verdict import WHAT

MakeRun = Callable[..., Path]


def summary_of(run: Path, width: int = 80, **options: str) -> str:
    (run / "report").mkdir(exist_ok=True)
    (run / "report" / "report.json").write_bytes(jsonl.encode(build_report(load_run(run))))
    target = io.StringIO()
    print_summary(run, console=Console(file=target, width=width), **options)
    return target.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_it_shows_each_measure_the_checks_and_where_all_lies(
    make_run: MakeRun, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(steps=2)
    (run / "model").mkdir()
    monkeypatch.chdir(run.parent.parent)
    shown = summary_of(run, width)
    assert "customer-service: before and after on 120 held-out prompts" in shown
    for label in ("fused reward", "guard spoke", "likeness to reference", "answer length"):
        assert label in shown
    assert shown.count("met  ") == 6
    lines = [line.rstrip() for line in shown.splitlines()]
    heading = lines.index("built-in checks")
    assert lines[heading + 1].startswith("met  fused reward rises")
    heads = next(place for place, line in enumerate(lines) if line.startswith(" measure"))
    assert lines[heads - 1].split() == ["change"]  # change / SE, in two lines
    assert lines[heads].split()[-3:] == ["interval", "/", "SE"]
    spoke = next(line for line in lines if line.startswith(" guard spoke"))
    assert re.search(r"% +-[\d.]+ pp +-[\d.]+ to -[\d.]+ pp +-[\d.]+$", spoke)  # of shares: points
    assert "run folder  runs/customer-service" in lines
    assert "report      runs/customer-service/report/index.html" in lines
    command = lines[-1].removeprefix("talk to it  ")
    assert shlex.split(command)[1:] == ["talk", os.path.join("runs", "customer-service", "model")]
    assert WHAT in " ".join(shown.split())
    measures = [line for line in lines if not line.startswith(("talk", "report", "run folder"))]
    assert max(map(len, measures)) <= width


def test_a_missed_check_stands_out_with_its_target(make_run: MakeRun) -> None:
    run = make_run(steps=2, prompts=40)
    (run / "eval" / "before.jsonl").write_bytes((run / "eval" / "after.jsonl").read_bytes())
    shown = summary_of(run, 160)
    lines = shown.splitlines()
    [place] = [place for place, line in enumerate(lines) if "fused reward rises" in line]
    assert lines[place].startswith("NOT MET  ")
    assert lines[place + 1].split() == ["target:", "by", "more", "than", "5", "SE"]
    assert shown.count("target: ") == shown.count("NOT MET")


def test_a_mount_that_failed_at_times_is_told(make_run: MakeRun) -> None:
    run = make_run(steps=4)
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for step, line in enumerate(lines):
        line["reward/tone/failed"] = 0.25 if step == 1 else 0.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    shown = " ".join(summary_of(run).split())
    assert "tone failed on " in shown
    assert "% of its rows, in 1 of 4 steps" in shown


def test_a_run_without_evaluation_gets_one_sentence(make_run: MakeRun) -> None:
    run = make_run(steps=3)
    for name in ("before", "after"):
        (run / "eval" / f"{name}.jsonl").unlink()
    shown = summary_of(run, talk="my-chat model")
    assert "Over steps 1 to 3 the training batches' mean fused reward went from" in shown
    text = (run / "metrics.jsonl").read_text("utf-8")
    rewards = [json.loads(line)["reward/fused/mean"] for line in text.splitlines()]
    assert f"from {rewards[0]:.3f} (step 1) to {rewards[2]:.3f} (step 3)." in " ".join(
        shown.split()
    )
    assert "talk to it  my-chat model" in shown


def test_a_longer_run_without_evaluation_says_which_steps_its_means_are_of(
    make_run: MakeRun,
) -> None:
    run = make_run(steps=7)
    for name in ("before", "after"):
        (run / "eval" / f"{name}.jsonl").unlink()
    text = (run / "metrics.jsonl").read_text("utf-8")
    rewards = [json.loads(line)["reward/fused/mean"] for line in text.splitlines()]
    first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    said = f"from {first:.3f} (mean of the first 3 steps) to {last:.3f} (of the last 3)."
    assert said in " ".join(summary_of(run).split())


def test_a_run_that_was_stopped_before_its_last_evaluation_shows_no_empty_table(
    make_run: MakeRun,
) -> None:
    run = make_run(steps=3)
    (run / "eval" / "after.jsonl").unlink()
    shown = summary_of(run)
    assert "measure" not in shown
    assert "Over steps 1 to 3" in shown


def test_the_command_asks_held_out_prompts_as_the_model_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = tmp_path / "runs" / "shop", tmp_path / "data" / "held out.jsonl"
    for folder in (run / "model", data.parent):
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    (run / "config.yaml").write_text(
        yaml.safe_dump({"data": {"eval": str(data), "prompt_key": "question"}}), "utf-8"
    )
    command = talk_command(run)
    assert command is not None
    assert shlex.split(command)[2:] == ["runs/shop/model"]  # the file is gone
    data.write_text("{}\n", "utf-8")
    command = talk_command(run)
    assert command is not None
    assert shlex.split(command)[2:] == [
        "runs/shop/model", "--prompts", "data/held out.jsonl", "--prompt-key", "question",
    ]  # fmt: skip


def test_without_a_saved_model_there_is_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert talk_command(tmp_path) is None
    (tmp_path / "model").mkdir()
    command = talk_command(tmp_path)
    assert command is not None
    program = Path(sys.executable).with_name("verl-reward")
    assert Path(shlex.split(command)[0]).absolute() == program.absolute()
    python = tmp_path / "bin" / "python"  # of an installation whose scripts lie elsewhere
    monkeypatch.setattr(sys, "executable", str(python))
    assert talk_command(tmp_path) == f"{python} -m verl_core.trainer.talk {tmp_path / 'model'}"


def test_with_few_prompts_the_change_of_a_share_has_words_in_place_of_an_interval(
    make_run: MakeRun,
) -> None:
    shown = summary_of(make_run(steps=2, prompts=12), 80)
    spoke = next(line for line in shown.splitlines() if line.startswith(" guard spoke"))
    assert "too few prompts" in spoke
    assert "The built-in checks are left out: with 12 held-out prompts" in " ".join(shown.split())
    assert "NOT MET" not in shown
    assert max(map(len, shown.split("run folder")[0].splitlines())) <= 80
