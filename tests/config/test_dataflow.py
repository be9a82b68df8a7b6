"""A ``dataflow:`` that leaves stages out: they are as in a run that writes none."""

from __future__ import annotations

import pytest

from tests.config.conftest import Complain, Load
from verl_core.config import RunConfig, load_run_config
from verl_core.config.dataflow import default_dataflow

MOUNTS = """\
reward:
  - {type: tone, plugin: rules}
  - {type: facts, plugin: rouge}
  - {type: guard, plugin: safety, role: gate, penalty: -1}
"""


def flow_of(config: RunConfig) -> dict[str, list[str]]:
    assert config.dataflow is not None
    return {
        stage: [entry if isinstance(entry, str) else entry.name for entry in entries]
        for stage, entries in config.dataflow.items()
    }


@pytest.mark.parametrize(
    ("written", "stages"),
    [
        (
            "{advantage: [gdpo]}",
            "rollout=actor reward=tone,facts safety=guard advantage=gdpo update=ppo",
        ),
        ("{}", "rollout=actor reward=tone,facts safety=guard advantage=grpo update=ppo"),
        (
            "{reward: [tone, facts, guard]}",
            "rollout=actor reward=tone,facts,guard advantage=grpo update=ppo",
        ),
        (
            "{first: [tone], advantage: [gae], update: [ppo]}",
            "rollout=actor reward=facts safety=guard first=tone advantage=gae update=ppo",
        ),
        (
            "{rollout: [actor, ref_model], safety: [guard], update: [ppo]}",
            "rollout=actor,ref_model reward=tone,facts safety=guard advantage=grpo update=ppo",
        ),
        (
            "{safety: [{name: own, node_class: a.B}]}",
            "rollout=actor reward=tone,facts,guard safety=own advantage=grpo update=ppo",
        ),
        (
            "{advantage: [grpo], after: [{name: own, node_class: a.B}]}",
            "rollout=actor reward=tone,facts safety=guard advantage=grpo after=own update=ppo",
        ),
    ],
)
def test_stages_that_are_left_out_follow_from_the_rest(
    load: Load, written: str, stages: str
) -> None:
    flow = flow_of(load(f"{MOUNTS}dataflow: {written}\n"))
    assert " ".join(f"{stage}={','.join(names)}" for stage, names in flow.items()) == stages


def test_one_override_takes_gdpo(load: Load, tmp_path) -> None:
    config = load(MOUNTS, "dataflow.advantage=[gdpo]")
    assert flow_of(config)["advantage"] == ["gdpo"]
    assert flow_of(config)["safety"] == ["guard"]
    resolved = tmp_path / "config.yaml"
    resolved.write_text(config.to_yaml(), "utf-8")
    assert load_run_config(resolved).dataflow == config.dataflow


def test_what_needs_the_reference_model_gets_it(load: Load) -> None:
    config = load(MOUNTS, "dataflow.advantage=[gae]", "algorithm.kl_coef=0.1")
    assert flow_of(config)["rollout"] == ["actor", "ref_model"]
    assert load(MOUNTS, "dataflow.rollout=[actor]", "algorithm.kl_coef=0.1").dataflow == {
        "rollout": ("actor",),
        "reward": ("tone", "facts"),
        "safety": ("guard",),
        "advantage": ("grpo",),
        "update": ("ppo",),
    }


def test_a_gate_that_a_reward_waits_for_stands_with_the_rewards(load: Load) -> None:
    text = MOUNTS + "  - {type: judge, plugin: rules, after: [guard], only_if: open}\n"
    flow = flow_of(load(f"{text}dataflow: {{advantage: [gdpo]}}\n"))
    assert flow["reward"] == ["tone", "facts", "guard", "judge"]
    assert "safety" not in flow


@pytest.mark.parametrize("written", ["advantge: [gdpo]", "mine: [grpo]"])
def test_nothing_is_put_in_for_a_stage_that_is_meant_elsewhere(load: Load, written: str) -> None:
    assert "advantage" not in flow_of(load(f"{MOUNTS}dataflow: {{{written}}}\n"))


def test_a_completed_dataflow_is_checked_like_a_written_one(complain: Complain) -> None:
    [line] = complain(MOUNTS, "dataflow.advantage=[gdpo]", "rollout.n=1")
    assert "rollout.n: must be at least 2 for gdpo, got 1" in line


def test_an_empty_dataflow_is_the_one_of_a_run_that_writes_none(load: Load) -> None:
    config = load(f"{MOUNTS}dataflow: {{}}\n")
    assert flow_of(config) == default_dataflow(config.reward, needs_reference=False)
