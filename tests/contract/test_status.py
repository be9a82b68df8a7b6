"""The contract's section "Status of a row under a mount"."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from verl_reward_sdk import RewardError, RewardResult

WAYS = ("none", "group", "batch")


def test_neutral_by_group_then_step_then_nothing(engine, says, rows):
    """`neutral`: the mean of the mount's scored rows in the row's group; where the group has none,
    the mean of its scored rows in the step; where the step has none either, the mount adds nothing
    and the other weights stay as they are."""
    batch = rows(
        a=[1.0, 2.0, None, None, None, 6.0],
        b=[None] * 6,
        c=[1.0] * 6,
        groups=["x"] * 3 + list("yyz"),
    )
    built = engine(
        {"type": "a", "provider": says("a"), "weight": 2.0},
        {"type": "b", "provider": says("b"), "weight": 8.0},
        {"type": "c", "provider": says("c"), "weight": 0.5},
        policy="weighted_sum",
    )
    table = built.score(batch)
    taken = [1.0, 2.0, 1.5, 3.0, 3.0, 6.0]  # 1.5: of group x; 3.0: of the step
    assert table.columns["a"].normalised.tolist() == taken
    assert table.fused.tolist() == [2.0 * value + 0.5 for value in taken]
    assert table.columns["a"].status.tolist().count("abstained") == 3


@pytest.mark.parametrize("groups", [None, list("uvw")], ids=["no groups", "alone"])
def test_a_row_that_stands_alone_takes_the_mean_of_the_step(engine, says, rows, groups):
    """Where the row stands alone or has no group: the mean of its scored rows in the step."""
    table = engine({"type": "a", "provider": says("a")}, {"type": "b", "provider": says([0.0] * 3)})
    assert table.score(rows(a=[1.0, 2.0, None], groups=groups)).fused.tolist() == [1.0, 2.0, 1.5]


@pytest.mark.parametrize(
    ("policy", "normalize"),
    [
        *((policy, way) for policy in ("weighted_sum", "weighted_mean") for way in WAYS),
        ("product", "none"),  # it takes no normalised scores
    ],
)
@pytest.mark.parametrize("instead", [0.0, 0.4, 0.5, 1.0])
def test_the_best_row_gains_nothing_by_silence(engine, says, rows, policy, normalize, instead):
    """Never may a policy gain by making a provider abstain: beside rows that scored at least as
    much as it would have, a silent row gets at most the fused reward of the highest score."""
    built = engine(
        {"type": "a", "provider": says("a", score_range=(0.0, 1.0)), "normalize": normalize},
        {"type": "b", "provider": says("b", score_range=(0.0, 1.0)), "weight": 3.0},
        policy=policy,
    )

    def reward(score):
        batch = rows(a=[score, 1.0, instead, 0.5], b=[0.2, 0.9, 0.9, 0.9], groups=["x"] * 4)
        return float(built.score(batch).fused[0])

    assert reward(None) <= reward(1.0) + 1e-12
    mean = (1.0 + instead + 0.5) / 3
    assert reward(None) == pytest.approx(reward(mean), abs=1e-12)


def test_rows_that_a_mount_does_not_apply_to_are_outside_errors_and_statistics(engine, says, rows):
    """`not_applicable`: outside weights, errors and statistics: the mount neither sees the row nor
    counts it in its mean, in a neutral place, in `max_error_rate` or in `normalize:`."""
    seen = []

    def score(batch):
        seen.extend(batch.sample_ids)
        return RewardResult([1.0, 3.0, 0.0], failures={2: "down"})

    built = engine(
        {
            "type": "a",
            "provider": says(score),
            "applies_to": 'source == "math"',
            "normalize": "batch",
            "max_error_rate": 0.34,
            "on_error": "abstain",
        },
        {"type": "b", "provider": says([10.0] * 5)},
    )
    table = built.score(rows(source=["math", "chat", "math", "math", "chat"]))
    assert seen == ["s0", "s2", "s3"]
    assert table.columns["a"].status.tolist() == [
        *("ok", "not_applicable", "ok", "failed", "not_applicable")
    ]
    figures = table.metrics()
    assert figures["reward/a/mean"] == 2.0
    assert figures["reward/a/failed"] == pytest.approx(1 / 3)
    assert figures["reward/a/not_applicable"] == 0.4
    assert table.fused[[1, 4]].tolist() == [10.0, 10.0]
    assert table.fused[0] - 10.0 == pytest.approx(-(table.fused[2] - 10.0))


@pytest.mark.parametrize("failed", [2, 3])
def test_half_of_the_rows_may_fail_and_no_more(engine, says, rows, failed):
    """When more than `max_error_rate` (default 0.5) of a mount's rows in one step fail, the step
    raises `RewardError`; a failed row is masked by default and never becomes a 0.0."""
    answer = RewardResult([1.0] * 4, failures=dict.fromkeys(range(failed), "down"))
    built = engine({"type": "a", "provider": says(answer)})
    if failed > 2:
        with pytest.raises(RewardError, match=r"step 3 .*a: 3 of 4 rows failed.*0\.5.*down"):
            built.score(rows(4))
    else:
        table = built.score(rows(4))
        assert table.masked.tolist() == [True, True, False, False]
        assert [math.isnan(value) for value in table.fused] == [True, True, False, False]


def test_asked_for_scores_are_raw_scores(engine, says, rows):
    """`missing: zero` and `on_error: {default: x}` stand in the place of the raw score, so that
    `scale` holds for them too."""
    answer = RewardResult([1.0, None, 0.0], failures={2: "down"})
    mount = {"type": "a", "provider": says(answer), "scale": 10.0, "missing": "zero"}
    table = engine({**mount, "on_error": {"default": -0.5}, "weight": 2.0}).score(rows(3))
    assert table.fused.tolist() == [20.0, 0.0, -10.0]
    assert table.columns["a"].status.tolist() == ["ok", "abstained", "failed"]


FAILS = """
import json, os, pathlib
from verl_reward_sdk import ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1
folder = pathlib.Path(os.environ["FAILS"])

class Fails(RewardProvider[ProviderConfig]):
    name = "fails"

    def score(self, batch):
        with (folder / "calls").open("a") as file:
            file.write(json.dumps(list(batch.responses)) + "\\n")
        left = int((folder / "fail").read_text())
        if left:
            (folder / "fail").write_text(str(left - 1))
            raise ConnectionError("the judge is down")
        return [float(len(response)) for response in batch.responses]

@hookimpl
def verl_reward_providers():
    return [Fails]
"""


@pytest.mark.parametrize("times", [2, 3])
def test_a_step_is_scored_three_times_on_the_same_responses_and_then_the_run_ends(
    tiny_run, plugin_site, monkeypatch, fresh_imports, times
):
    """The trainer rescores the same rollout up to `reward_retries: 2` times with backoff, then
    checkpoints, prints the resume command and exits 1."""
    plugin_site.add("fails", rewards={"fails": "fails_reward"}, files={"fails_reward.py": FAILS})
    folder: Path = tiny_run.folder
    monkeypatch.setenv("FAILS", str(folder))
    monkeypatch.setenv("PYTHONPATH", os.fspath(plugin_site.folder))
    tiny_run.config["reward"] = [{"type": "fails", "plugin": "fails"}]
    tiny_run.config["rollout"]["prompts_per_step"] = 1  # one call a scoring
    (folder / "fail").write_text(str(times), "utf-8")
    no_evaluation = ("trainer.eval_before=false", "trainer.eval_after=false")
    done = tiny_run.run("trainer.steps=1", *no_evaluation)
    calls = [json.loads(line) for line in (folder / "calls").read_text("utf-8").splitlines()]
    assert len(calls) == 3
    assert calls[0] == calls[1] == calls[2]
    run = folder / "runs" / "tiny"
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text("utf-8").splitlines() if metrics.exists() else []
    if times == 2:
        assert done.returncode == 0, done.stderr
        assert json.loads(lines[0])["reward/fails/failed"] == 0.0
        assert kept == ["step_000001"]
    else:
        assert done.returncode == 1
        assert "the judge is down" in done.stderr
        assert "--resume" in done.stdout + done.stderr
        assert kept == ["step_000000"]
        assert lines == []
