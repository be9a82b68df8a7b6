"""From ``dataflow:`` to a graph of stages, and what is refused before a model is loaded."""

from __future__ import annotations

import math

import pytest

from verl_core.config import load_run_config
from verl_core.plugins import PluginRegistry
from verl_core.trainer.preflight import preflight
from verl_reward_sdk import ConfigError

NODE = """
import torch
from verl_core.trainer.reward import RewardNode

class LengthNode(RewardNode):
    def compute_reward(self, batch):
        return batch["response_mask"].sum(dim=1).float() / 10 - self._compute_kl_penalty(batch)
"""

OWN = """
from verl_core.dataflow import Node

class Halve(Node):
    reads = frozenset({"token_level_rewards"})
    writes = frozenset({"token_level_rewards"})
    def __init__(self, by=2.0):
        self.by = by
    def run(self, batch):
        batch.metrics["own/halved"] = float(batch["token_level_rewards"].sum() / self.by)
        return {"token_level_rewards": batch["token_level_rewards"] / self.by}

class Counts(Node):
    reads = frozenset({"responses"})
    def run(self, batch):
        batch.metrics["own/rows"] = float(len(batch["responses"]))
        return {}

class NoNode:
    pass
"""
FLOW = {
    "rollout": ["actor"],
    "reward": ["style", "overlap"],
    "safety": ["guard"],
    "advantage": ["grpo"],
    "update": ["ppo"],
}
HALVE = {"name": "halve", "node_class": "own_nodes.Halve"}


def checked(tiny_run, *overrides):
    return preflight(load_run_config(tiny_run.write(), overrides), PluginRegistry())


def shape(pipeline):
    return {stage.name: [node.name for node in stage.nodes] for stage in pipeline.graph.stages}


@pytest.fixture
def own(tiny_run, fresh_imports):
    """A run whose folder holds nodes, and whose dataflow is `FLOW`."""
    (tiny_run.folder / "own_nodes.py").write_text(OWN, "utf-8")
    (tiny_run.folder / "length_node.py").write_text(NODE, "utf-8")
    tiny_run.config["dataflow"] = {stage: list(nodes) for stage, nodes in FLOW.items()}
    return tiny_run


def refused(tiny_run, *overrides):
    with pytest.raises(ConfigError) as caught:
        checked(tiny_run, *overrides)
    return str(caught.value)


# -- the dataflow that follows from the rest ------------------------------------------------------


def test_without_a_dataflow_rewards_come_first_then_gates_then_grpo(tiny_run):
    pipeline = checked(tiny_run).pipeline
    assert shape(pipeline) == {
        "rollout": ["actor"],
        "reward": ["style+overlap"],
        "safety": ["guard"],
        "fusion": ["fuse"],
        "advantage": ["grpo"],
        "update": ["ppo"],
    }
    assert [stage.name for stage in pipeline.rollout] == ["rollout"]
    assert [stage.name for stage in pipeline.reward] == ["reward", "safety", "fusion"]
    assert [stage.name for stage in pipeline.learn] == ["advantage", "update"]


def test_a_gate_that_a_reward_waits_for_stands_among_the_rewards(tiny_run):
    waits = {"after": ["guard"], "only_if": "open"}
    tiny_run.config["reward"] = [
        mount | (waits if mount.get("name", mount["type"]) == "style" else {})
        for mount in tiny_run.config["reward"]
    ]
    flow = shape(checked(tiny_run).pipeline)
    assert flow["reward"] == ["style+overlap+guard"]
    assert "safety" not in flow


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_a_kl_term_brings_the_reference_model(tiny_run, where):
    settings = ("algorithm.kl_coef=0.1", f"algorithm.kl_in={where}")
    assert shape(checked(tiny_run, *settings).pipeline)["rollout"] == ["actor", "ref_model"]


def test_a_reward_node_brings_the_reference_model(own):
    own.config["dataflow"] = None
    own.config["reward"] = [{"type": "custom", "node_class": "length_node.LengthNode"}]
    assert shape(checked(own).pipeline)["rollout"] == ["actor", "ref_model"]


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        ((), False),
        (("algorithm.epochs=2",), True),
        (("algorithm.minibatches=2",), True),
        (("algorithm.kl_coef=0.1",), False),
        (("algorithm.kl_coef=0.1", "algorithm.kl_in=reward"), True),
    ],
)
def test_old_log_probs_are_computed_only_where_somebody_reads_them(tiny_run, settings, read):
    graph = checked(tiny_run, *settings).pipeline.graph
    assert graph.reads("old_log_probs") is read
    assert any("old_log_probs" in n.writes for s in graph.stages for n in s.nodes) is read


# -- a dataflow of one's own ----------------------------------------------------------------------


def test_a_stage_of_ones_own_runs_where_it_is_written_and_fusion_behind_the_last_mount(own):
    own.config["dataflow"] = {
        "rollout": ["actor"],
        "safety": ["guard"],
        "reward": ["style", "overlap"],
        "advantage": ["grpo"],
        "update": ["ppo"],
    }
    assert list(shape(checked(own).pipeline)) == [
        *("rollout", "safety", "reward", "fusion", "advantage", "update")
    ]


def test_a_node_of_ones_own_behind_the_mounts_changes_the_rewards(own, read_jsonl):
    """It reads what fusion writes, in a stage of its own name, and is timed as such."""
    counts = {"name": "counts", "node_class": "own_nodes.Counts"}
    own.config["dataflow"] = {
        "rollout": ["actor", counts],
        "reward": ["style", "overlap", "guard"],
        "shaping": [{**HALVE, "init_kwargs": {"by": 4.0}}],
        "advantage": ["grpo"],
        "update": ["ppo"],
    }
    (line,) = read_jsonl(own.train("trainer.steps=1") / "metrics.jsonl")
    assert line["own/halved"] == pytest.approx(8 * line["reward/fused/mean"] / 4)
    assert line["own/rows"] == 8
    assert line["timing_s/shaping"] > 0
    assert line["actor/grad_norm"] > 0


def test_a_node_that_reads_the_rewards_before_they_are_fused_is_told_to_stand_behind(own):
    own.config["dataflow"]["reward"].append(HALVE)
    said = refused(own)
    assert "'halve' reads the column 'token_level_rewards', which no node before it writes" in said
    assert "'fuse' in stage 'fusion' (it follows the last mounts) writes it" in said
    assert "move 'halve' behind" in said
    assert "run.yaml:" in said
    assert "dataflow.reward" in said


def test_mounts_of_a_stage_with_a_node_between_them_are_scored_before_and_after_it(own):
    counts = {"name": "counts", "node_class": "own_nodes.Counts"}
    own.config["dataflow"]["reward"] = ["style", counts, "overlap"]
    assert shape(checked(own).pipeline)["reward"] == ["style", "counts", "overlap"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({**HALVE, "node_class": "own_nodes.NoNode"}, "NoNode is a class, but not a Node"),
        ({**HALVE, "node_class": "own_nodes.Havle"}, "did you mean 'Halve'?"),
        ({**HALVE, "init_kwargs": {"bye": 1}}, "Halve takes no argument 'bye'"),
        ({**HALVE, "node_class": "os.system"}, "but not a Node"),
    ],
)
def test_what_is_no_node_is_refused_where_it_stands(own, entry, words):
    own.config["dataflow"]["shaping"] = [entry]
    said = refused(own)
    assert "run.yaml:" in said
    assert "dataflow.shaping" in said
    assert words in said


@pytest.mark.parametrize("stage", ["advantage", "update"])
def test_kl_without_the_reference_model_says_to_add_it(own, stage):
    where = {"advantage": "reward", "update": "loss"}[stage]
    said = refused(own, "algorithm.kl_coef=0.1", f"algorithm.kl_in={where}")
    assert "reads the column 'ref_log_prob', which no node before it writes" in said
    assert "add ref_model to the rollout stage" in said


def test_a_reward_node_without_the_reference_model_says_to_add_it(own):
    own.config["reward"].append({"type": "custom", "node_class": "length_node.LengthNode"})
    own.config["dataflow"]["reward"].append("length")
    assert "add ref_model to the rollout stage" in refused(own)


def test_a_mount_may_follow_one_of_an_earlier_stage_and_none_of_a_later(own):
    own.config["dataflow"] = {"rollout": ["actor"], "first": ["overlap"], **FLOW}
    own.config["dataflow"]["reward"] = ["style"]
    own.config["reward"][0] |= {"after": ["overlap"], "only_if": "overlap >= 0"}
    assert "first" in shape(checked(own).pipeline)
    own.config["dataflow"] = {**FLOW, "reward": ["style"], "safety": ["guard", "overlap"]}
    said = refused(own)
    assert "mount 'style' follows 'overlap', which stands in a later stage" in said
    assert "move style behind overlap" in said


def test_the_advantage_before_the_rewards_is_refused(own):
    own.config["dataflow"] = {
        "rollout": ["actor"],
        "advantage": ["grpo"],
        "reward": ["style", "overlap", "guard"],
        "update": ["ppo"],
    }
    assert "'grpo' reads the column" in refused(own)


def test_a_node_that_a_plugin_offers_is_named_alone(own, plugin_site):
    plugin = (
        "from verl_reward_sdk import hookimpl\nVERL_REWARD_API = 1\n"
        "@hookimpl\ndef verl_reward_nodes():\n    return {'halve': Halve}\n"
    )
    plugin_site.add(
        "acme", extensions={"acme": "acme_nodes"}, files={"acme_nodes.py": OWN + plugin}
    )
    own.config["dataflow"] = {
        **{stage: FLOW[stage] for stage in ("rollout", "reward", "safety")},
        "shaping": ["halve"],
        **{stage: FLOW[stage] for stage in ("advantage", "update")},
    }
    own.config["plugins"] = ["acme"]
    assert shape(checked(own).pipeline)["shaping"] == ["halve"]
    own.config["dataflow"]["shaping"] = ["havle"]
    assert "unknown node 'havle' (did you mean 'halve'?)" in refused(own)


# -- reward nodes ---------------------------------------------------------------------------------


def test_a_node_that_pays_kl_beside_kl_in_the_reward_is_refused_unless_it_is_meant(own):
    own.config["dataflow"] = None
    own.config["reward"] = [{"type": "custom", "node_class": "length_node.LengthNode"}]
    settings = ("algorithm.kl_coef=0.1", "algorithm.kl_in=reward")
    said = refused(own, *settings)
    assert "reward.length.node_class" in said
    assert "the KL would be paid twice" in said
    assert "allow_double_kl" in said
    assert checked(own, *settings, "algorithm.allow_double_kl=true").node_mounts == ("length",)


def test_a_node_that_only_evaluation_mounts_gets_its_tensors_too(own, read_jsonl):
    own.config["eval_reward"] = [
        {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}},
        {"type": "custom", "node_class": "length_node.LengthNode"},
    ]
    folder = own.train("trainer.steps=1")
    for row in read_jsonl(folder / "eval" / "after.jsonl"):
        score = row["explain"]["mounts"]["length"]
        assert score["status"] == "ok"
        assert math.isfinite(score["raw"])
    before = read_jsonl(folder / "eval" / "before.jsonl")
    raw = [row["explain"]["mounts"]["length"]["raw"] for row in before]
    assert raw == pytest.approx([row["tokens"] / 10 for row in before])  # no KL before training


def test_a_node_of_evaluation_that_is_none_is_refused_too(own):
    own.config["eval_reward"] = [{"type": "custom", "node_class": "own_nodes.NoNode"}]
    said = refused(own)
    assert "NoNode is a class, but not a RewardNode" in said
    assert "eval_reward" in said
