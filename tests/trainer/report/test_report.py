"""The report as a reader gets it: the page, its figures and its numbers, of all kinds of runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from verl_core.trainer import jsonl
from verl_core.trainer.report import write_report
from verl_core.trainer.report.build import build_report
from verl_core.trainer.report.data import load_run
from verl_core.trainer.report.page import captions, figure_value, render
from verl_core.trainer.report.verdict import WHAT
from verl_reward_sdk import VerlRewardError

MakeRun = Callable[..., Path]
HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} 你好 🎉 \x00 \ud800"
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """A page's elements, text and addresses; and the elements that were not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._read(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._read(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data

    def _read(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            assert not name.startswith("on"), f"a handler: {name}={value}"
            if name == "id":
                self.ids.append(value or "")
            if name in {"src", "href", "xlink:href", "action", "srcset"}:
                self.addresses.append(value or "")


def read(index: Path) -> tuple[Page, dict[str, Any], str]:
    text = index.read_text("utf-8")
    report = json.loads((index.parent / "report.json").read_text("utf-8"))
    return Page(text), report, text


def without_figures(run: Path) -> tuple[Page, dict[str, Any]]:
    """The page and the numbers alone, which are made in a moment."""
    report = build_report(load_run(run))
    return Page(render(report, {})), report


def test_a_finished_run_has_a_page_figures_and_the_same_numbers(make_run: MakeRun) -> None:
    run = make_run()
    page, report, text = read(write_report(run))
    assert sorted(path.name for path in (run / "report").glob("*.png")) == [
        "heldout.png", "rewards.png", "training.png", "why.png",
    ]  # fmt: skip
    for path in (run / "report").glob("*.png"):
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

    # Whole, and nothing from elsewhere: every address is a part of this page.
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {address[1:] for address in page.addresses} <= set(page.ids)
    assert all(address.startswith("#") for address in page.addresses)
    assert "@import" not in text
    assert "url(http" not in text
    assert "script" not in page.tags

    # The page's numbers are report.json's.
    fused = report["verdict"]["fused"]
    assert f"{fused['before']:.3f}" in page.text
    assert f"{fused['after']:.3f}" in page.text
    assert f"+{fused['diff']:.3f}" in page.text
    for measure in report["evaluation"]["measures"]:
        assert measure["label"] in page.text
    for check in report["verdict"]["checks"]:
        assert check["name"] in page.text
        assert check["target"] in page.text
    for sentence in report["story"]:
        assert sentence in page.text

    # Both themes, and the phone.
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert 'class="narrow"' in text

    # Who changed the weights, when, and why.
    assert report["revisions"][1]["first_step"] == 9
    assert "r2 mia: tone is learnt; sell more" in page.text
    assert "tone 1 → 0.5, conversion 0.5 → 1" in page.text


def test_hostile_text_stays_text_wherever_it_comes_from(make_run: MakeRun) -> None:
    run = make_run(steps=2, prompts=4, changed_at=None)
    for name in ("before", "after"):
        rows = list(jsonl.read(run / "eval" / f"{name}.jsonl"))
        for row in rows:
            row["prompt"] = [{"role": "user", "content": HOSTILE}]
            row["response"] = row["reference"] = HOSTILE
            row["explain"]["mounts"]["tone"]["reason"] = HOSTILE
            row["explain"]["mounts"]["$x^2$ <b>"] = row["explain"]["mounts"].pop("accuracy")
        (run / "eval" / f"{name}.jsonl").write_bytes(b"".join(map(jsonl.encode, rows)))
    metrics = list(jsonl.read(run / "metrics.jsonl"))
    for record in metrics:
        record["weights/$x^2$ <b>"] = record.pop("weights/accuracy")
        record["reward/$x^2$ <b>/mean"] = record.pop("reward/accuracy/mean")
    (run / "metrics.jsonl").write_bytes(b"".join(map(jsonl.encode, metrics)))
    page, _, text = read(write_report(run))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert "alert(1)" in page.text
    assert "{{ 7*7 }}" in page.text
    assert "$x^2$ <b>" in page.text
    assert "你好 🎉" in text


def test_an_unfinished_run_of_one_step_without_evaluation(make_run: MakeRun) -> None:
    run = make_run(steps=1, changed_at=None)
    shutil.rmtree(run / "eval")
    (run / "state.json").unlink()
    page, report, text = read(write_report(run))
    assert report["run"]["status"] == "unfinished"
    assert report["headline"]["kind"] == "training"
    assert report["evaluation"] is None
    assert report["verdict"] == {}
    assert not (run / "report" / "heldout.png").exists()
    assert "training, step 1" in page.text
    assert "mean fused reward of step 1" in page.text
    assert page.open == []
    # The same run makes the same page, byte for byte.
    assert write_report(run).read_text("utf-8") == text


def test_a_run_that_has_just_begun_has_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"run_id": "r", "status": "running", "steps": 16}')
    page, report, _ = read(write_report(tmp_path))
    assert report["headline"] == {"kind": "none"}
    assert "no step yet" in page.text
    assert list((tmp_path / "report").glob("*.png")) == []


def test_a_run_with_only_its_first_evaluation_shows_what_it_has(make_run: MakeRun) -> None:
    run = make_run(steps=2, changed_at=None)
    (run / "eval" / "after.jsonl").unlink()
    page, report = without_figures(run)
    fused = report["evaluation"]["measures"][0]
    assert fused["before"]["mean"] == pytest.approx(0.75, abs=0.3)
    assert fused["after"] is None
    assert fused["diff"] is None
    assert report["verdict"] == {}
    assert report["headline"]["kind"] == "training"
    assert page.open == []
    assert "Before training, on held-out prompts" in page.text
    for word in ("compared prompt by prompt", "score after", "adds to the change", "change / SE"):
        assert word not in page.text
    assert captions(report)["heldout"] == "Every measure on held-out prompts before training"


def test_kl_is_spoken_of_where_a_step_has_one(make_run: MakeRun) -> None:
    run = make_run(steps=2, changed_at=None)
    sentence = "KL says how far the model has moved"
    report = build_report(load_run(run))
    assert sentence in render(report, {"training": ("", "")})
    assert "KL" in captions(report)["training"]
    metrics = list(jsonl.read(run / "metrics.jsonl"))
    for record in metrics:
        del record["actor/kl"]
    (run / "metrics.jsonl").write_bytes(b"".join(map(jsonl.encode, metrics)))
    report = build_report(load_run(run))
    assert sentence not in render(report, {"training": ("", "")})
    assert captions(report)["training"] == "Answer length, loss and speed over the training steps"


def test_a_change_of_a_share_is_in_percentage_points_and_of_a_score_in_its_own_unit() -> None:
    assert figure_value(0.075, "share") == "7.5\u00a0%"
    assert figure_value(-0.075, "share", sign=True) == "−7.5\u00a0pp"
    assert figure_value(-0.075, "score", sign=True) == "−0.075"


def test_a_run_without_gates_and_references_leaves_out_what_it_cannot_know(
    make_run: MakeRun,
) -> None:
    run = make_run(steps=2, prompts=30, changed_at=None)
    for name in ("before", "after"):
        rows = list(jsonl.read(run / "eval" / f"{name}.jsonl"))
        for row in rows:
            del row["reference_tokens"]
            row["reference"] = None
            guard = row["explain"]["mounts"].pop("guard")
            row["fused"] -= guard["contribution"]
            row["explain"]["gate"] = "none"
        (run / "eval" / f"{name}.jsonl").write_bytes(b"".join(map(jsonl.encode, rows)))
    report = build_report(load_run(run))
    names = [measure["name"] for measure in report["evaluation"]["measures"]]
    assert "gate" not in names
    assert "similarity" not in names
    assert [check["name"] for check in report["verdict"]["checks"]] == [
        "fused reward rises",
        "repetition does not rise",
    ]
    assert not any("gate" in sentence for sentence in report["story"])


def test_blocked_rows_are_counted_and_told(make_run: MakeRun) -> None:
    run = make_run(steps=2, prompts=10, changed_at=None)
    rows = list(jsonl.read(run / "eval" / "after.jsonl"))
    for row in rows[:3]:
        row["fused"] = None
        row["explain"] |= {"fused": None, "blocked": True, "masked": "gate failed"}
    (run / "eval" / "after.jsonl").write_bytes(b"".join(map(jsonl.encode, rows)))
    report = build_report(load_run(run))
    assert report["evaluation"]["after"] == {
        "rows": 10, "prompts": 10, "blocked": 3, "unscored": 0,
    }  # fmt: skip
    assert report["headline"]["prompts"] == 7
    assert report["story"][-1] == (
        "Rows without a reward are in no mean: 3 blocked and 0 unscored after."
    )


def test_a_missed_check_is_said_plainly(make_run: MakeRun) -> None:
    run = make_run(steps=2, prompts=60, changed_at=None)
    (run / "eval" / "after.jsonl").replace(run / "eval" / "x")
    (run / "eval" / "before.jsonl").replace(run / "eval" / "after.jsonl")
    (run / "eval" / "x").replace(run / "eval" / "before.jsonl")
    page, report = without_figures(run)
    assert not report["verdict"]["checks"][0]["met"]
    assert "fell from" in report["story"][0]
    assert "built-in checks are not met: fused reward rises;" in page.text
    assert page.text.count("✗ not met") == sum(
        not check["met"] for check in report["verdict"]["checks"]
    )


def test_examples_are_chosen_by_rule_and_hold_the_worst(make_run: MakeRun) -> None:
    run = make_run(steps=2, prompts=60, changed_at=None)
    report = build_report(load_run(run))
    changes = {
        before["prompt_id"]: after["fused"] - before["fused"]
        for before, after in zip(
            jsonl.read(run / "eval" / "before.jsonl"),
            jsonl.read(run / "eval" / "after.jsonl"),
            strict=True,
        )
    }
    shown = [example["change"] for example in report["examples"]]
    assert shown[0] == pytest.approx(max(changes.values()))
    assert shown[-1] == pytest.approx(min(changes.values()))
    assert any(example["answers"][0]["gate"] == "veto" for example in report["examples"])
    for example in report["examples"]:
        for answer in example["answers"]:
            added = sum(part["contribution"] for part in answer["parts"])
            assert added == pytest.approx(answer["fused"])


def test_another_runs_revisions_in_the_same_file_are_not_shown(make_run: MakeRun) -> None:
    from verl_core.rewards.weights import WeightStore

    run = make_run(steps=2, prompts=4, changed_at=None)
    WeightStore({"tone": 7.0}, run_id="run-2", path=run / "weights.db").close()
    report = build_report(load_run(run))
    assert [revision["run_id"] for revision in report["revisions"]] == ["run-1"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VerlRewardError, match="is not the folder of a run"):
        write_report(tmp_path)
    assert not (tmp_path / "report").exists()


def test_the_built_in_checks_are_called_so_and_said_to_be_nobodys_targets(
    make_run: MakeRun,
) -> None:
    page, _ = without_figures(make_run(steps=2, changed_at=None))
    assert "Built-in checks" in page.text
    assert WHAT in page.text
    assert "Targets that were set before the run" not in page.text


def test_with_few_prompts_no_check_is_made_and_no_change_of_a_share_has_an_interval(
    make_run: MakeRun,
) -> None:
    page, report = without_figures(make_run(steps=2, prompts=29, changed_at=None))
    assert report["verdict"]["checks"] == []
    reason = "with 29 held-out prompts chance is too large, they need 30"
    assert f"The built-in checks are left out: {reason}." in report["story"]
    assert reason in page.text
    assert "checks met" not in page.text
    gate = next(m for m in report["evaluation"]["measures"] if m["name"] == "gate")
    assert (gate["diff"]["low"], gate["diff"]["high"]) == (None, None)
    assert "too few prompts to tell" in page.text


def test_a_run_that_was_stopped_has_no_checks_either(make_run: MakeRun) -> None:
    run = make_run(steps=2, changed_at=None)
    state = json.loads((run / "state.json").read_text("utf-8")) | {"status": "stopped"}
    (run / "state.json").write_bytes(jsonl.encode(state))
    report = build_report(load_run(run))
    assert report["verdict"]["checks"] == []
    assert report["verdict"]["left_out"] == "the run was stopped before its end"


def test_weight_in_evaluation_times_the_change_of_the_score_is_what_a_mount_adds(
    make_run: MakeRun,
) -> None:
    page, report = without_figures(make_run(steps=12, changed_at=9))
    adds = {part["mount"]: part["diff"]["mean"] for part in report["contributions"]}
    measures = {m["name"]: m for m in report["evaluation"]["measures"]}
    mounts = [mount for mount in report["mounts"] if mount["role"] == "reward"]
    assert any(mount["first_weight"] != mount["last_weight"] for mount in mounts)
    for mount in mounts:
        score = measures[mount["name"]]
        change = score["after"]["mean"] - score["before"]["mean"]
        assert mount["eval_weight"] * change == pytest.approx(adds[mount["name"]], abs=1e-12)
    assert "weight in evaluation" in page.text
