"""The contract's section "Fusion", and of "Weights" that a step is scored under one lease."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest


def test_the_order_of_all_that_happens_to_a_score(engine, says, rows):
    """Order, always: raw score -> scale -> clip -> normalize -> weight -> policy -> gates. Of these
    numbers any two steps in another order give another reward."""
    raw = [0.1, 0.3, 0.9, 0.9]
    built = engine(
        {
            "type": "a",
            "provider": says(raw, score_range=(0.0, 1.0)),
            "scale": 10.0,
            "clip": [2.0, 8.0],
            "normalize": "batch",
            "weight": 3.0,
        },
        {"type": "b", "provider": says([1.0, 2.0, 3.0, 4.0]), "weight": 0.5},
        {
            "type": "g",
            "provider": says([0.0, 0.0, 1.0, 0.0]),
            "role": "gate",
            "penalty": -0.25,
            "severity": "penalty",
            "threshold": {"above": 0.5},
        },
        policy="weighted_mean",
    )
    table = built.score(rows(4))
    clipped = np.array([2.0, 3.0, 8.0, 8.0])
    normalised = (clipped - clipped.mean()) / clipped.std(ddof=1)
    summed = (3.0 * normalised + 0.5 * np.array([1.0, 2.0, 3.0, 4.0])) / 3.5
    assert table.columns["a"].scores.tolist() == raw
    assert table.columns["a"].normalised == pytest.approx(normalised)
    assert table.fused == pytest.approx(np.add(summed, [0.0, 0.0, -0.25, 0.0]))


@pytest.mark.parametrize("normalize", ["group", "batch", "running"])
@pytest.mark.parametrize("score", [0.0, 0.1, 1e9 / 3])
def test_without_a_spread_a_normalised_score_is_exactly_0(engine, says, rows, normalize, score):
    """Standard deviation below epsilon gives 0, never NaN."""
    built = engine(
        {"type": "a", "provider": says([score] * 4), "normalize": normalize},
        {"type": "b", "provider": says([1.0] * 4)},
    )
    for step in (1, 2):
        table = built.score(rows(4, groups="xxyy", step=step))
        assert table.columns["a"].normalised.tolist() == [0.0] * 4
        assert table.fused.tolist() == [1.0] * 4
        built.step_end(table)


def test_running_statistics_are_of_finished_training_steps_only(engine, says, rows):
    """`running`: changes at the end of a step only, never in evaluation, kept in checkpoints."""

    def make():
        return engine({"type": "a", "provider": says("a"), "normalize": "running"})

    def normalised(of, values):
        batch = rows(a=values, training=False, step=None)
        return of.score(batch).columns["a"].normalised.tolist()

    built = make()
    first = built.score(rows(a=[0.0, 2.0, 4.0], step=1))
    before = normalised(built, [1.0, 3.0])
    assert before == normalised(built, [1.0, 3.0])  # scoring alone teaches nothing
    with pytest.raises(ValueError, match="training"):
        built.step_end(built.score(rows(a=[9.0, 9.5], training=False)))
    built.step_end(first)
    after = normalised(built, [1.0, 3.0])
    assert after == pytest.approx([-0.5, 0.5])  # mean 2, standard deviation 2
    built.step_end(first)  # a step counts once
    assert normalised(built, [1.0, 3.0]) == after
    resumed = make()
    resumed.load_state(json.loads(json.dumps(built.state())))
    assert normalised(resumed, [1.0, 3.0]) == after


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("weighted_sum", {}),
        ("weighted_mean", {}),
        ("product", {}),
        ("min", {}),
        ("lexicographic", {"tolerance": 0.1}),
        ("constrained", {"bounds": {"b": 0.2}}),
    ],
)
def test_explain_takes_every_row_apart(engine, says, rows, policy, options):
    """`RewardTable.explain(i)` gives each component's raw score, normalised score, weight,
    contribution, status and reason, with revision and generations. Where the policy is additive
    the contributions add up to the fused value; elsewhere a contribution is the fused value minus
    the fused value without that mount, and `additive: false` says so."""
    scores = {
        "a": [0.5, 0.25, None, 1.0],
        "b": [0.25, 0.75, 0.5, 0.125],
        "c": [1.0, 0.5, 0.25, 0.5],
    }

    def make(*names):
        mounts = [{"type": n, "provider": says(n, score_range=(0.0, 1.0))} for n in names]
        fits = policy != "constrained" or "b" in names  # a bound on b needs b
        return engine(*mounts, policy=policy, fusion=options if fits else {})

    batch = rows(**scores, groups="xxxx")
    built = make("a", "b", "c")
    table = built.score(batch)
    others = {n: [m for m in scores if m != n] for n in scores}
    may_leave_out = [n for n in scores if policy != "constrained" or n != "b"]
    without = {n: make(*others[n]).score(batch).fused for n in may_leave_out}
    for row in range(4):
        said = json.loads(json.dumps(table.explain(row), allow_nan=False))
        assert said["revision"] == 1
        assert said["generations"] == {"a": 1, "b": 1, "c": 1}
        assert said["additive"] == (policy in ("weighted_sum", "weighted_mean", "constrained"))
        parts = {name: part["contribution"] for name, part in said["mounts"].items()}
        for name, part in said["mounts"].items():
            assert part["raw"] == scores[name][row]
            assert part["weight"] == 1.0
            assert part["status"] == ("abstained" if part["raw"] is None else "ok")
        if said["additive"]:
            assert sum(parts.values()) == pytest.approx(said["fused"])
        else:
            for name in may_leave_out:
                expected = said["fused"] - without[name][row]
                assert parts[name] == pytest.approx(expected), name


TURNS = """
import json, os, pathlib, urllib.request
from verl_reward_sdk import ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1
folder = pathlib.Path(os.environ["TURNS"])

class Turns(RewardProvider[ProviderConfig]):
    name = "turns"

    def score(self, batch):
        # In the middle of step 2: one group is scored already, another is still to come.
        if batch.training and batch.step == 2 and not (folder / "turned").exists():
            (folder / "turned").write_text("")
            request = urllib.request.Request(
                f"http://127.0.0.1:{os.environ['PORT']}/api/v1/reward/weights",
                data=b'{"style": 5.0, "turns": 0.25}',
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                (folder / "answer").write_bytes(answer.read())
        return [1.0] * len(batch)

@hookimpl
def verl_reward_providers():
    return [Turns]
"""


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_change_in_mid_step_is_the_next_steps_and_never_evaluations(
    tiny_run, plugin_site, monkeypatch, fresh_imports, read_jsonl, free_port, stream
):
    """reliability 39, with a real server and a real run: a synchronous run leases a whole step; a
    change during a step takes effect with the next lease, whole. `eval_reward:` scores evaluation
    only, by default with the training set's weights of step 0, and never follows the live store."""
    plugin_site.add("turns", rewards={"turns": "turns_reward"}, files={"turns_reward.py": TURNS})
    monkeypatch.setenv("TURNS", str(tiny_run.folder))
    monkeypatch.setenv("PORT", str(free_port))
    monkeypatch.setenv("PYTHONPATH", os.fspath(plugin_site.folder))
    tiny_run.config["reward"][1:2] = [{"type": "turns", "plugin": "turns", "weight": 0.5}]
    tiny_run.config["server"] = {"enabled": True, "port": free_port}
    tiny_run.config["tracking"]["samples_per_step"] = 100
    done = tiny_run.run(f"rollout.stream={stream}")
    assert done.returncode == 0, done.stderr
    answer = json.loads((tiny_run.folder / "answer").read_text("utf-8"))
    assert (answer["revision"], answer["effective_step"]) == (2, 3)

    folder = tiny_run.folder / "runs" / "tiny"
    expected = {1: (1, 1.0, 0.5), 2: (1, 1.0, 0.5), 3: (2, 5.0, 0.25)}
    for line in read_jsonl(folder / "metrics.jsonl"):
        found = [line[f"weights/{name}"] for name in ("revision", "style", "turns")]
        assert tuple(found) == expected[line["step"]]
    samples = read_jsonl(folder / "samples.jsonl")
    assert len(samples) == 24
    for row in samples:
        assert weights_of(row) == expected[row["step"]]
        assert adds_up(row)
    for name in ("before", "after"):
        rows = read_jsonl(folder / "eval" / f"{name}.jsonl")
        assert {weights_of(row) for row in rows} == {(0, 1.0, 0.5)}
        assert all(adds_up(row) for row in rows)


def weights_of(row):
    mounts = row["explain"]["mounts"]
    return row["explain"]["revision"], mounts["style"]["weight"], mounts["turns"]["weight"]


def adds_up(row):
    mounts = row["explain"]["mounts"]
    summed = sum(mounts[name]["weight"] * mounts[name]["raw"] for name in ("style", "turns"))
    return mounts["guard"]["severity"] != "none" or math.isclose(row["explain"]["fused"], summed)
