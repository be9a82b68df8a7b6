"""Training beside mounts that hang, crash, leak processes, hold the GIL or break the contract."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest

from verl_core.trainer.report.build import write_report

BAD = {
    "hang": {"timeout": 0.5},
    "segfault": {},
    "grandchild": {"timeout": 1.0},
    "hold_the_gil": {"timeout": 0.5},
    "short": {},
}
#: What the report says of each.
WHY = {
    "hang": "no answer within timeout: 0.5 s; its worker was killed",
    "segfault": "its worker died by SIGSEGV (signal 11)",
    "grandchild": "no answer within timeout: 1 s; its worker was killed",
    "hold_the_gil": "no answer within timeout: 0.5 s; its worker was killed",
    "short": "scores has a wrong length: got 3, expected 4 rows",
}
LENIENT = {"on_error": "abstain", "max_error_rate": 1.0}


@pytest.fixture
def hostile(tiny_run, plugin_site, monkeypatch):
    """The tiny run with a healthy mount; ``hostile(deed, …, **keys)`` adds mounts that do these."""
    folder = Path(__file__).parent.parent / "rewards" / "execution"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(plugin_site.folder), str(folder))))
    names = ("orders", "deed", "rows", "later")
    plugin_site.add(
        "verl-reward-deeds",
        rewards=dict.fromkeys(names, "deeds_plugin"),
        files={"deeds_plugin.py": (folder / "deeds.py").read_text(encoding="utf-8")},
    )
    tiny_run.config["reward"] = tiny_run.config["reward"][:1]
    tiny_run.config["rollout"] |= {"prompts_per_step": 1, "max_new_tokens": 4}
    tiny_run.config["trainer"] |= {
        "steps": 20,
        "checkpoint_every": 0,
        "eval_before": False,
        "eval_after": False,
    }

    def add(*deeds, **keys):
        tiny_run.config["reward"] += [
            {
                "type": deed,
                "plugin": "deed",
                "execution": "process",
                "init_kwargs": {"does": deed},
                "queue_timeout": 120.0,
                "timeout": 120.0,
                **BAD[deed],
                **keys,
            }
            for deed in deeds
        ]
        return tiny_run

    yield add
    sys.modules.pop("misbehaving", None)


def test_twenty_steps_are_trained_beside_five_mounts_that_misbehave(
    hostile, read_jsonl, our_children
):
    """A breaker keeps the later steps from waiting for each of them again."""
    run = hostile(*BAD, **LENIENT, breaker={"failures": 2, "reset": 3600.0})
    folder = run.train()
    lines = read_jsonl(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 21))
    for line in lines:
        assert math.isfinite(line["reward/style/mean"])
        assert line["reward/fused/mean"] == pytest.approx(line["reward/style/mean"])
        assert line["reward/masked"] == 0.0
        assert [line[f"reward/{name}/failed"] for name in BAD] == [1.0] * 5
        assert not any(f"reward/{name}/mean" in line for name in BAD)
    assert our_children() == []
    write_report(folder)
    report = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    told = {one["mount"]: one for one in report["failures"]}
    assert told.keys() == set(BAD)
    for name, why in WHY.items():
        assert (told[name]["share"], told[name]["steps"], told[name]["of_steps"]) == (1.0, 20, 20)
        assert why in told[name]["reason"]
        [said] = [text for text in report["story"] if text.startswith(f"{name} failed on 100")]
        assert "in 20 of 20 steps, at first: " in said
        assert why in said


@pytest.mark.parametrize("deeds", [tuple(BAD), ("hang",)])
def test_on_defaults_it_ends_early_with_a_checkpoint_and_the_resume_command(hostile, deeds):
    """reliability 47: no failure ever becomes a zero to train on."""
    run = hostile(*deeds)
    if deeds == ("hang",):
        run.config["reward"] = run.config["reward"][1:]  # every provider times out
    done = run.run("trainer.reward_retries=1")
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "scoring the same responses again in 1 s" in said
    assert "the rewards of step 1 may not be used" in said
    for name in deeds:
        assert f"{name}: 4 of 4 rows failed (max_error_rate 0.5)" in said
    assert f"train {run.folder / 'run.yaml'}" in said.replace("\n", " ")
    assert "--resume" in said
    folder = run.folder / "runs" / "tiny"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_000000"]
    metrics = folder / "metrics.jsonl"
    assert not metrics.exists() or metrics.read_text(encoding="utf-8") == ""
