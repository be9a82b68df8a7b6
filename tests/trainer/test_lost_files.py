"""Files that go away, and a current folder that changes, while a run trains; names that are no
UTF-8."""

from __future__ import annotations

import json
import os

import pytest

from verl_core.cli.errors import from_here
from verl_core.config import load_run_config
from verl_core.trainer.finish import finish
from verl_core.trainer.near import near, started_here
from verl_core.trainer.report import write_report
from verl_core.trainer.run_folder import RunFolder
from verl_core.trainer.setup import Session
from verl_core.trainer.tracking import Tracker
from verl_core.trainer.train import train


def test_a_report_whose_metrics_are_missing_says_so(tiny_run, capsys):
    settings = ["trainer.steps=1", "trainer.eval_before=false", "trainer.eval_after=false"]
    cfg = load_run_config(tiny_run.write(), settings)
    with Session(cfg, plain=True) as run:
        outcome = train(run)
        (run.folder.path / "metrics.jsonl").unlink()
        finish(run, outcome, again="")
        folder = run.folder.path
    said = " ".join(capsys.readouterr().out.split())
    assert "metrics.jsonl, which holds those of each step, is missing" in said
    assert "has not finished a step" not in said
    page = (folder / "report" / "index.html").read_text("utf-8")
    assert "metrics.jsonl, which holds those of each step, is missing" in page


def test_a_run_without_a_step_still_says_that_it_has_none(tmp_path):
    folder = RunFolder.create(tmp_path, "shop").path
    write_report(folder)
    report = json.loads((folder / "report" / "report.json").read_bytes())
    assert report["story"][0] == "No figures yet: the run has not finished a step."


def test_figures_of_later_steps_are_kept_though_somebody_removed_the_files(tmp_path, read_jsonl):
    with Tracker(tmp_path, tensorboard=False) as tracker:
        for step in range(1, 4):
            tracker.log(step, {"x": step})
            tracker.samples(step, [{"prompt": "p"}])
            if step == 1:
                (tmp_path / "metrics.jsonl").unlink()
                (tmp_path / "samples.jsonl").unlink()
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert [line["step"] for line in read_jsonl(tmp_path / name)] == [2, 3]


def test_a_file_that_was_moved_is_written_on_where_it_lies(tmp_path, read_jsonl):
    with Tracker(tmp_path, tensorboard=False) as tracker:
        tracker.log(1, {})
        (tmp_path / "metrics.jsonl").rename(tmp_path / "elsewhere")
        tracker.log(2, {})
    assert [line["step"] for line in read_jsonl(tmp_path / "elsewhere")] == [1, 2]


def test_a_name_that_is_no_utf_8_goes_to_tensorboard_as_its_escape(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Tracker(tmp_path) as tracker:
        tracker.log(1, {"reward/\ud800": 2.0, "reward/ü": 3.0})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["reward/\\ud800", "reward/ü"]
    [value] = events.Scalars("reward/\\ud800")
    assert value.value == 2.0


# -- paths, as the person who started the command would type them --


@pytest.mark.parametrize("elsewhere", ["/", "..", "runs"])
def test_paths_count_from_where_the_command_was_started(tmp_path, monkeypatch, elsewhere):
    runs = tmp_path / "project" / "runs"
    runs.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    with started_here():
        os.chdir(elsewhere)
        assert near(runs / "tiny") == "runs/tiny"
        assert near(tmp_path / "other") == str(tmp_path / "other")
        assert from_here(f"{runs}/tiny is full") == "runs/tiny is full"
    os.chdir("/")
    assert from_here(f"{runs}/tiny is full") == f"{runs}/tiny is full"


def test_paths_are_whole_where_the_folder_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert near(tmp_path / "x") == str(tmp_path / "x")
    with started_here():
        assert near(tmp_path / "x") == str(tmp_path / "x")


NODE = """
import os
from verl_core.trainer.reward import RewardNode


class Wanders(RewardNode):
    def compute_reward(self, batch):
        os.chdir("/")
        return batch["response_mask"].sum(-1).float()
"""


def test_a_run_in_which_a_reward_changes_the_folder_shows_paths_that_work(tiny_run):
    (tiny_run.folder / "wanderer.py").write_text(NODE, "utf-8")
    tiny_run.config["reward"].append({"type": "wanders", "node_class": "wanderer.Wanders"})
    tiny_run.config["output"] = "runs"
    done = tiny_run.run("trainer.steps=1", "trainer.eval_before=false")
    assert done.returncode == 0, done.stderr
    places = dict(
        line.split(maxsplit=2)[::2] if line.startswith("run folder") else line.split(maxsplit=1)
        for line in done.stdout.splitlines()
        if line.startswith(("run folder ", "report "))
    )
    assert places == {"run": "runs/tiny", "report": "runs/tiny/report/index.html"}
