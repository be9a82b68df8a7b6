"""The contract's section "The seed document's forms", in runs of the tiny model."""

from __future__ import annotations

import math
import threading
import time

import pytest
import torch
from torch import nn

from verl_core.trainer.node_loader import build
from verl_core.trainer.reward import RewardNode
from verl_reward_sdk import ConfigError

SHAPES = """
import json, pathlib
import torch
from verl_core.trainer.reward import RewardNode

class SafetyRewardNode(RewardNode):
    def __init__(self, note, scale=1.0):
        self.note, self.scale = pathlib.Path(note).resolve(), scale

    def compute_reward(self, batch):
        tensors = {k: v for k, v in batch.items() if isinstance(v, torch.Tensor)}
        kl = self._compute_kl_penalty(batch)
        said = {
            "shapes": {name: list(value.shape) for name, value in tensors.items()},
            "types": {name: str(value.dtype) for name, value in tensors.items()},
            "values": {name: value.tolist() for name, value in tensors.items()},
            "responses": batch["responses"],
            "others": sorted(set(batch) - set(tensors) - {"responses"}),
            "kl": kl.tolist(),
        }
        with self.note.open("a") as file:
            file.write(json.dumps(said) + "\\n")
        return batch["response_mask"].sum(dim=1) * self.scale - 0.0 * kl
"""
DOCUMENT = {
    "rollout": ["actor", "ref_model"],
    "reward": ["safety_reward"],
    "advantage": ["gae"],
    "update": ["ppo"],
}


@pytest.mark.parametrize("form", ["mapping", "list"])
def test_the_documents_node_trains_by_ppo_with_a_critic(tiny_run, fresh_imports, read_jsonl, form):
    """`reward:` may be one mapping or a list; `type: custom` is named after its class in snake case
    without `Node`, as `dataflow:` calls it; `init_kwargs` go to the constructor; `compute_reward`
    gets the tensors in their shapes, prompts padded left, with the texts and the columns;
    `_compute_kl_penalty` is k1 summed over response tokens; `advantage: ["gae"]`, `update:
    ["ppo"]` is PPO with a critic."""
    (tiny_run.folder / "safety_reward.py").write_text(SHAPES, "utf-8")
    mount = {
        "type": "custom",
        "node_class": "safety_reward.SafetyRewardNode",
        "init_kwargs": {"note": "given.jsonl", "scale": 0.5},
        "reads": ["ground_truth"],
    }
    tiny_run.config |= {"reward": mount if form == "mapping" else [mount], "dataflow": DOCUMENT}
    folder = tiny_run.train("trainer.steps=2", "rollout.stream=false")
    lines = read_jsonl(folder / "metrics.jsonl")
    assert len(lines) == 2
    for line in lines:
        assert math.isfinite(line["critic/loss"])
        assert line["weights/safety_reward"] == 1.0
        assert line["reward/safety_reward/mean"] == 0.5 * line["response/length_mean"]
    given = read_jsonl(tiny_run.folder / "given.jsonl")
    assert len(given) >= 4  # both evaluations and both steps
    for one in given:
        check(one)


def check(one):
    """One call's dict, as the contract has it."""
    shapes, values = one["shapes"], one["values"]
    b, r = shapes["response_mask"]
    wide, types = shapes["input_ids"], one["types"]
    assert wide[0] == b == len(one["responses"])
    assert shapes["attention_mask"] == wide
    for name in ("generated_ids", "old_log_probs", "ref_log_prob"):
        assert shapes[name] == [b, r]
    assert types["old_log_probs"] == types["ref_log_prob"] == "torch.float32"
    assert one["others"] == ["ground_truth"]
    p = wide[1] - r
    for row in range(b):
        attention, mask = values["attention_mask"][row], values["response_mask"][row]
        assert attention[:p] == sorted(attention[:p])  # zeros first: prompts padded left
        assert attention[p - 1] == 1
        assert attention[p:] == mask == sorted(mask, reverse=True)
        assert values["input_ids"][row][p:] == values["generated_ids"][row]
        pairs = zip(values["old_log_probs"][row], values["ref_log_prob"][row], mask, strict=True)
        terms = [(old - ref) * on for old, ref, on in pairs]
        assert one["kl"][row] == pytest.approx(sum(terms), abs=1e-5)


PASSES = """
import json, pathlib
from verl_core.dataflow import Node

class Passes(Node):
    reads = frozenset({"rows"})
    writes = frozenset()

    def __init__(self, mark):
        self.mark = mark

    def run(self, batch):
        batch.metrics["own/" + self.mark] = 1.0
        return {}
"""


@pytest.mark.parametrize("stage", ["rollout", "reward", "safety", "advantage", "update"])
def test_in_every_stage_a_node_may_be_written_out(tiny_run, fresh_imports, read_jsonl, stage):
    """In every stage a node may be written `{name, node_class, init_kwargs}`."""
    (tiny_run.folder / "passes.py").write_text(PASSES, "utf-8")
    flow = {
        "rollout": ["actor"],
        "reward": ["style", "overlap"],
        "safety": ["guard"],
        "advantage": ["grpo"],
        "update": ["ppo"],
    }
    node = {"name": "mine", "node_class": "passes.Passes", "init_kwargs": {"mark": stage}}
    flow[stage] = [*flow[stage], node]
    tiny_run.config["dataflow"] = flow
    folder = tiny_run.train("trainer.steps=1", "trainer.eval_before=false")
    (line,) = read_jsonl(folder / "metrics.jsonl")
    assert line[f"own/{stage}"] == 1.0
    assert line["reward/style/failed"] == 0.0


@pytest.mark.parametrize("shape", ["(n, 1)", "(1,)", "()", "(n - 1,)"])
def test_rewards_of_another_shape_are_not_broadcast(tiny_run, fresh_imports, shape):
    """`compute_reward` returns a float tensor (B,): any other shape is a broken contract, which
    ends the run here, and never becomes a reward."""
    source = f"""
import torch
from verl_core.trainer.reward import RewardNode

class OddNode(RewardNode):
    def compute_reward(self, batch):
        n = len(batch["responses"])
        return torch.zeros({shape})
"""
    (tiny_run.folder / "odd.py").write_text(source, "utf-8")
    tiny_run.config["reward"] = [{"type": "custom", "node_class": "odd.OddNode"}]
    settings = ("trainer.eval_before=false", "trainer.reward_retries=0", "trainer.steps=1")
    done = tiny_run.run(*settings)
    assert done.returncode == 1
    assert "odd: 8 of 8 rows failed" in done.stderr
    assert "scores has a wrong length" in done.stderr


def test_nodes_are_built_one_at_a_time_in_the_configs_folder(tmp_path):
    """Nodes are built one at a time with the config's folder as working directory."""
    inside = []

    class Opens(RewardNode):
        def __init__(self, name):
            inside.append(name)
            time.sleep(0.01)  # time for another one to come in and to change the folder
            with open("name.txt", encoding="utf-8") as file:
                self.found = (name, file.read(), list(inside))
            inside.remove(name)

    found = {}

    def make(name):
        found[name] = build(Opens, {"name": name}, (), tmp_path / name).found

    names = [f"run{i}" for i in range(6)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "name.txt").write_text(name, "utf-8")
    threads = [threading.Thread(target=make, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {name: (name, name, [name]) for name in names}


class Loads(RewardNode):
    def __init__(self, path):
        self.model = torch.load(path)


def test_a_pickled_module_is_refused_until_its_class_is_allowed(tmp_path):
    """`torch.load` on a pickled module is refused by torch's own default; `safe_globals` allows the
    classes, submodules' classes included."""
    torch.save(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())), tmp_path / "m.pt")
    with pytest.raises(ConfigError, match=r"not allowed.*safe_globals"):
        build(Loads, {"path": "m.pt"}, (), tmp_path)
    allowed = ("torch.nn.modules.container.Sequential",)
    assert len(build(Loads, {"path": "m.pt"}, allowed, tmp_path).model) == 2
    with pytest.raises(ConfigError, match="not allowed"):
        build(Loads, {"path": "m.pt"}, (), tmp_path)  # and only where it was asked for
