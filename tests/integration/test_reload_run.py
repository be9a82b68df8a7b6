"""A file is replaced by another process in the middle of a step of a real run: the step ends on the
old generation, and the next one scores with the new."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

PLUGIN = '''
import time
from pathlib import Path
from verl_reward_sdk import ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1


class HandsConfig(ProviderConfig):
    folder: Path


class Hands(RewardProvider[HandsConfig]):
    """Says which batch it scores, and waits until it is told to go on."""
    name = "hands"
    scope = "group"

    def score(self, batch):
        if batch.training:
            (self.config.folder / f"scoring-{batch.step}").touch()
            while not (self.config.folder / f"go-{batch.step}").exists():
                time.sleep(0.01)
        return [0.0] * len(batch)


@hookimpl
def verl_reward_providers():
    yield Hands
'''
RULES = "score: {{base: {}}}\nrules: [{{name: a, contains: zqzq, points: 0.1}}]\n"


def test_a_swap_in_mid_step_reaches_the_next_step_and_never_this_one(
    tiny_run, plugin_site, read_jsonl
):
    plugin_site.add(
        "verl-reward-hands", rewards={"hands": "hands_plugin"}, files={"hands_plugin.py": PLUGIN}
    )
    steps, folder = 3, tiny_run.folder
    tiny_run.config["reward"] = [
        {
            "type": "hands",
            "plugin": "hands",
            "weight": 0.1,
            "init_kwargs": {"folder": str(folder)},
        },
        {
            "type": "style",
            "plugin": "rules",
            "init_kwargs": {"rules": "style.yaml"},
            "when": "hands >= 0",  # it is asked after the swap
        },
    ]
    tiny_run.config["data"].pop("eval")
    tiny_run.config["trainer"]["steps"] = steps
    (folder / "style.yaml").write_text(RULES.format(0.1))
    run = subprocess.Popen(
        tiny_run.command(),
        cwd=folder,
        env={**tiny_run.environment(), "PYTHONPATH": str(plugin_site.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for step in range(1, steps + 1):
            end = time.monotonic() + 120
            while not (folder / f"scoring-{step}").exists():
                assert run.poll() is None, run.communicate()[0]
                assert time.monotonic() < end, "the run does not come to its next step"
                time.sleep(0.01)
            (folder / "style.yaml").write_text(RULES.format(0.1 + step / 10))
            (folder / f"go-{step}").touch()
        out, _ = run.communicate(timeout=120)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, out
    (folder,) = folder.glob("runs/*/")
    metrics = read_jsonl(folder / "metrics.jsonl")
    assert [line["reward/style/mean"] for line in metrics] == pytest.approx([0.1, 0.2, 0.3])
    assert [line["reward/style/std"] for line in metrics] == pytest.approx([0, 0, 0])
    assert [line["reward/style/generation"] for line in metrics] == [1, 2, 3]
    explained = [row["explain"] for row in read_jsonl(folder / "samples.jsonl")]
    assert {e["generations"]["style"] for e in explained} == {1, 2, 3}
    for e in explained:
        assert e["mounts"]["style"]["raw"] == pytest.approx(e["generations"]["style"] / 10)
    assert "step 2: style runs generation 2 from here on (style.yaml)" in out
    noted = read_jsonl(folder / "generations.jsonl")
    assert [(n["step"], n["number"]) for n in noted if n["mount"] == "style"] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]
    report = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    assert [(one["mount"], one["step"]) for one in report["replaced"]] == [
        ("style", 2),
        ("style", 3),
    ]
    assert "What was replaced" in (folder / "report" / "index.html").read_text("utf-8")
    assert "From step 2 on, style scored with another style.yaml" in " ".join(report["story"])
