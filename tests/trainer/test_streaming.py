"""A run whose rewards are computed while responses are still generated, and which cannot be told
from one whose are not."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from verl_core.config import load_run_config
from verl_core.plugins import PluginRegistry
from verl_core.trainer.early import early_mounts
from verl_core.trainer.preflight import preflight
from verl_core.trainer.setup import Session
from verl_core.trainer.train import train_step

#: What differs between two runs of the same bits.
MEASURED = ("time", "timing_s/", "perf/")

#: A judge that notes which rows it was asked about, and fails where a file says so.
NOTES = """
import asyncio, json, os, pathlib
from verl_reward_sdk import AsyncRewardProvider, ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1
folder = pathlib.Path(os.environ["NOTES"])

def note(name, batch):
    with (folder / name).open("a") as file:
        file.write(json.dumps(list(batch.sample_ids)) + "\\n")
    if (folder / "broken").exists():
        (folder / "broken").unlink()
        raise RuntimeError("down")
    # What others stand in the call shows, as in a padded network.
    total = 1 + sum(len(response) for response in batch.responses)
    return [len(response) / total for response in batch.responses]

class Judge(AsyncRewardProvider[ProviderConfig]):
    name = "judge"
    async def score(self, batch):
        await asyncio.sleep(0)
        return note("judge", batch)

class Company(RewardProvider[ProviderConfig]):
    name = "company"
    def score(self, batch):
        return note("company", batch)

@hookimpl
def verl_reward_providers():
    return [Judge, Company]
"""

OWN = """
from verl_core.dataflow import Node

class Counts(Node):
    reads = frozenset({"responses"})
    def run(self, batch):
        batch.metrics["own/rows"] = float(len(batch["responses"]))
        return {}

class Chooses(Node):
    reads = frozenset({"rows"})
    writes = frozenset({"rows"})
    def run(self, batch):
        return {"rows": batch["rows"][:1]}

class Shortens(Node):
    reads = frozenset({"responses"})
    writes = frozenset({"responses"})
    def run(self, batch):
        return {"responses": ["x" for _ in batch["responses"]]}
"""


@pytest.fixture
def noted(tiny_run, plugin_site, monkeypatch, fresh_imports):
    """The tiny run with a judge and a mount that shows its company, and what they noted."""
    plugin_site.add(
        "notes",
        rewards={"judge": "notes_rewards", "company": "notes_rewards"},
        files={"notes_rewards.py": NOTES},
    )
    notes = tiny_run.folder / "notes"
    notes.mkdir()
    monkeypatch.setenv("NOTES", str(notes))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plugin_site.folder)]))
    (tiny_run.folder / "own_nodes.py").write_text(OWN, "utf-8")
    tiny_run.config["reward"] += [
        {"type": "judge", "plugin": "judge", "after": ["style"], "only_if": "style > 0.3"},
        {"type": "company", "plugin": "company"},
    ]
    return tiny_run


def calls(run, name):
    path = run.folder / "notes" / name
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    return lines


def bits(line):
    return {key: value for key, value in line.items() if not key.startswith(MEASURED)}


def test_streaming_changes_no_bit_of_a_run(noted, read_jsonl):
    runs = [noted.train(f"rollout.stream={stream}") for stream in ("true", "false")]
    lines = [[bits(line) for line in read_jsonl(run / "metrics.jsonl")] for run in runs]
    assert lines[0] == lines[1]
    samples = [read_jsonl(run / "samples.jsonl") for run in runs]
    assert samples[0] == samples[1]
    name = "checkpoints/step_000003/policy/model.safetensors"
    one, other = (load_file(run / name) for run in runs)
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("prompts", [1, 2])
def test_a_judge_is_asked_row_by_row_and_other_mounts_about_whole_prompts(noted, prompts):
    settings = (f"rollout.slice_prompts={prompts}", "trainer.steps=1", "trainer.eval_before=false")
    noted.train(*settings, "trainer.eval_after=false")
    judged, company = calls(noted, "judge"), calls(noted, "company")
    assert all(len(call) == 1 for call in judged)
    assert sorted(len(call) for call in company) == [4 * prompts] * (2 // prompts)


def test_the_steps_log_says_how_much_was_hidden(noted, read_jsonl):
    for line in read_jsonl(noted.train("trainer.steps=2") / "metrics.jsonl"):
        hidden, exposed = line["timing_s/reward_hidden"], line["timing_s/reward_exposed"]
        assert hidden >= 0
        assert exposed > 0
        assert line["perf/reward_hidden_share"] == pytest.approx(hidden / (hidden + exposed))


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_step_whose_rewards_failed_is_scored_again_whole(noted, stream):
    settings = (f"rollout.stream={stream}", "trainer.eval_before=false")
    noted.config["reward"] = [
        {"type": "company", "plugin": "company", "max_error_rate": 0.0},
        {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}},
    ]
    (noted.folder / "notes" / "broken").touch()
    cfg = load_run_config(noted.write(), settings)
    with Session(cfg, plain=True) as run:
        metrics = train_step(run, 1)
    slices = sorted(calls(noted, "company"))
    assert slices == sorted(2 * [[f"1-{p}-{j}" for j in range(4)] for p in range(2)])
    assert metrics["reward/company/failed"] == 0.0


# -- which mounts begin early ----------------------------------------------------------------------


def flow(run, **stages):
    run.config["dataflow"] = {
        "rollout": ["actor"],
        "reward": ["style", "overlap"],
        "safety": ["guard", "judge", "company"],
        "advantage": ["grpo"],
        "update": ["ppo"],
        **stages,
    }


def own(name):
    return {"name": name.lower(), "node_class": f"own_nodes.{name}"}


def early(run):
    found = preflight(load_run_config(run.write()), PluginRegistry())
    return early_mounts(found.pipeline.graph, found.node_mounts)


def test_mounts_of_every_stage_begin_early_where_only_mounts_stand_between(noted):
    flow(noted, rollout=["actor", "ref_model"])
    assert early(noted).mounts == {"style", "overlap", "guard", "judge", "company"}
    assert early(noted).barrier is None


def test_behind_a_node_of_ones_own_mounts_wait_for_their_stage(noted):
    flow(noted, reward=["style", "overlap", own("Counts")])
    assert early(noted).mounts == {"style", "overlap"}
    assert early(noted).barrier == "counts"
    flow(noted, rollout=["actor", own("Counts")])
    assert early(noted).mounts == set()
    assert early(noted).barrier == "counts"


def test_a_node_behind_fusion_holds_up_nothing(noted):
    flow(noted, advantage=[own("Counts"), "grpo"])
    assert early(noted).barrier is None
    assert len(early(noted).mounts) == 5


def test_a_reward_node_waits_for_the_steps_tensors(noted):
    node = "import torch\nfrom verl_core.trainer.reward import RewardNode\nclass Own(RewardNode):\n"
    node += "    def compute_reward(self, batch):\n        return batch['response_mask'].sum(1)\n"
    (noted.folder / "own_reward.py").write_text(node, "utf-8")
    noted.config["reward"].append(
        {"type": "custom", "name": "own", "node_class": "own_reward.Own", "weight": 0.1}
    )
    assert "own" not in early(noted).mounts
    assert early(noted).barrier is None
    noted.train("trainer.steps=1", "trainer.eval_before=false")


def test_a_run_says_once_which_node_holds_rewards_up_and_they_see_what_it_wrote(
    noted, capsys, read_jsonl
):
    flow(noted, rollout=["actor", own("Shortens")])
    folder = noted.train("trainer.steps=2", "trainer.eval_before=false")
    assert all(row["response"] == "x" for row in read_jsonl(folder / "samples.jsonl"))
    flow(noted, reward=["style", "overlap", own("Counts")])
    noted.train("trainer.steps=2", "trainer.eval_before=false")
    said = [line for line in capsys.readouterr().out.splitlines() if "mounts behind" in line]
    assert said == ["mounts behind the node counts score when the step's responses are all in"]


def test_a_node_that_chooses_the_prompts_is_followed(noted, read_jsonl):
    flow(noted, rollout=[own("Chooses"), "actor"])
    settings = ("trainer.steps=1", "trainer.eval_before=false", "trainer.eval_after=false")
    noted.train(*settings)
    assert [len(call) for call in calls(noted, "company")] == [4]
