"""Policies, `normalize:` and GDPO that a run cannot have are refused before a model is loaded."""

from __future__ import annotations

import pytest

from tests.trainer.conftest import flow
from verl_core.config import load_run_config
from verl_core.plugins import PluginRegistry
from verl_core.trainer.preflight import preflight
from verl_reward_sdk import ConfigError


def refused(tiny_run, *overrides):
    with pytest.raises(ConfigError) as caught:
        preflight(load_run_config(tiny_run.write(), overrides), PluginRegistry())
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reward.style.normalize=group"], "reward.style.normalize: gdpo normalises every mount"),
        (["algorithm.kl_coef=0.1", "algorithm.kl_in=reward"], "algorithm.kl_in: gdpo reads"),
        (["fusion.policy=min", "reward.overlap.weight=1"], "fusion.policy: gdpo weighs and sums"),
    ],
)
def test_gdpo_is_refused_beside_what_it_would_not_follow(tiny_run, overrides, words):
    tiny_run.config["dataflow"] = flow(advantage=["gdpo"])
    assert words in refused(tiny_run, *overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rollout.n=1", "rollout.eval_n=2"], "fusion.policy: lexicographic compares"),
        (["rollout.eval_n=1"], "rollout.eval_n is 1 (set rollout.eval_n to 2 or more, or give"),
    ],
)
def test_lexicographic_without_groups_is_refused(tiny_run, overrides, words):
    tiny_run.config["fusion"] = {"policy": "lexicographic"}
    tiny_run.config["reward"][1] |= {"weight": 1.0}
    tiny_run.config["dataflow"] = flow(advantage=["gae"])  # which needs no groups itself
    said = refused(tiny_run, *overrides)
    assert words in said
    assert "run.yaml:" in said


def test_normalize_group_without_groups_is_refused(tiny_run):
    tiny_run.config["dataflow"] = flow(advantage=["gae"])
    said = refused(tiny_run, "reward.style.normalize=group", "rollout.n=1")
    assert "reward.style.normalize: normalize: group compares" in said


def test_a_schedule_that_the_policy_refuses_later_is_refused_before_the_run(tiny_run):
    tiny_run.config["fusion"] = {"policy": "min"}
    tiny_run.config["reward"][1] |= {"weight": {"cosine": {"from": 1.0, "to": 0.0, "steps": 9}}}
    assert "at step 1: reward.overlap.weight: min has no use" in refused(tiny_run)


def test_options_of_a_policy_are_told_with_their_lines_all_at_once(tiny_run):
    tiny_run.config["fusion"] = {"policy": "constrained", "bounds": {"style": "x"}, "rate": -1.0}
    first, second = refused(tiny_run).splitlines()
    assert "fusion.bounds.style: expected a number, got 'x'" in first
    assert "fusion.rate: must be greater than 0, got -1" in second
    assert all("run.yaml:" in line for line in (first, second))


def test_a_fusion_of_evaluation_is_told_in_its_own_place(tiny_run):
    tiny_run.config["eval_reward"] = {
        "reward": [{**tiny_run.config["reward"][0], "weight": 3.0}],
        "fusion": {"policy": "min"},
    }
    assert "eval_reward.style.weight: min has no use for a weight of 3" in refused(tiny_run)
    tiny_run.config["eval_reward"] = tiny_run.config["reward"][:1]
    tiny_run.config["fusion"] = {"policy": "constrained", "bounds": {"overlap": 0.5}}
    said = refused(tiny_run)
    assert "fusion.bounds.overlap" in said
    assert "eval_reward: has no fusion: of its own" in said
