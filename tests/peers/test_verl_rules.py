"""What a config may ask for inside verl: refused with its place, or replaced and said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from verl_core.config import RunConfig, load_run_config
from verl_core.integrations.verl_rules import carried, check_engine
from verl_reward_sdk import ConfigError

TONE = {"type": "tone", "plugin": "rules"}
GUARD = {"type": "guard", "plugin": "safety", "role": "gate", "penalty": -1.0}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunConfig]:
    def build(*mounts: dict[str, Any], **top: Any) -> RunConfig:
        whole = {"model": {"path": "none"}, "data": {"train": "none"}, "reward": list(mounts)}
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(whole | top, sort_keys=False), "utf-8")
        return load_run_config(path)

    return build


def refusal(cfg: RunConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        carried(cfg)
    return str(caught.value)


REFUSED = [
    ({"missing": "mask"}, "missing", "cannot leave a single row out"),
    ({"missing": "neutral"}, "missing", "the mean of the row's group"),
    ({"on_error": "mask"}, "on_error", "cannot leave a single row out"),
    ({"on_error": {"default": 0.0}, "max_error_rate": 0.1}, "max_error_rate", "a step's rows"),
    (
        {"on_error": "abstain", "missing": "zero", "max_error_rate": 0.1},
        "max_error_rate",
        "a step's rows",
    ),
]


@pytest.mark.parametrize(("keys", "key", "why"), REFUSED)
def test_what_a_mount_asks_for_by_name_and_verl_cannot_carry_is_refused(run, keys, key, why):
    said = refusal(run(TONE | keys))
    assert f"reward.tone.{key}: verl cannot carry {key}: " in said
    assert why in said
    assert "run.yaml:" in said


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"skip_update": True}, "skip_update"),
        ({"in_baseline": True}, "in_baseline"),
        ({"threshold": {"below": 0.5}, "severity": "skip"}, "severity"),
    ],
)
def test_a_gate_that_keeps_rows_out_of_the_update_is_refused(run, keys, key):
    said = refusal(run(TONE, GUARD | keys))
    assert f"reward.guard.{key}: verl cannot carry {key}: " in said
    assert "a veto gives the row the penalty" in said


@pytest.mark.parametrize("way", ["group", "batch", "running"])
def test_a_normalisation_over_rows_is_refused(run, way):
    said = refusal(run(TONE | {"normalize": way}))
    assert "reward.tone.normalize: " in said
    assert f"verl cannot carry normalize: {way}: it needs the rows of a group or a step" in said


@pytest.mark.parametrize(
    ("fusion", "why"),
    [
        ({"policy": "lexicographic"}, "the rows of a group"),
        ({"policy": "constrained", "bounds": {"tone": 0.5}}, "whole steps"),
    ],
)
def test_a_policy_over_groups_or_steps_is_refused(run, fusion, why):
    said = refusal(run(TONE, fusion=fusion))
    assert f"fusion.policy: verl cannot carry policy: {fusion['policy']}: " in said
    assert why in said


def test_a_node_is_refused(run):
    node = {"type": "custom", "node_class": "mine.SafetyRewardNode", "name": "mine"}
    assert "reward.mine.node_class: verl cannot carry node_class: mine.SafetyRewardNode" in refusal(
        run(TONE, node)
    )


def test_a_reward_for_evaluation_alone_is_refused_and_the_same_one_is_not(run):
    other = [TONE | {"weight": 2.0}]
    assert "eval_reward: verl cannot carry eval_reward" in refusal(run(TONE, eval_reward=other))
    carried(run(TONE, eval_reward=[TONE]))


def test_gdpo_is_refused_because_the_advantage_is_verl_s(run):
    stages = {"rollout": ["actor"], "reward": ["tone"], "advantage": ["gdpo"], "update": ["ppo"]}
    said = refusal(run(TONE, dataflow=stages))
    assert "dataflow.advantage[0]: verl cannot carry gdpo: " in said


def test_all_refusals_are_told_at_once_a_line_each(run):
    said = refusal(
        run(TONE | {"missing": "mask", "on_error": "mask"}, GUARD | {"in_baseline": True})
    )
    assert len(said.splitlines()) == 3


def test_defaults_become_what_verl_carries_and_are_said(run):
    kept = carried(run(TONE, GUARD))
    tone, guard = kept.rewards.mounts
    assert (tone.missing, tone.on_error, tone.max_error_rate) == ("mask", "mask", 1.0)
    assert guard == run(TONE, GUARD).reward[1]
    notes = "\n".join(kept.notes)
    assert "on_error: raise in place of mask (tone)" in notes
    assert "an abstention fails its prompt group likewise (tone)" in notes
    assert "a row that a gate could not judge fails its prompt group (guard)" in notes


def test_what_verl_carries_as_written_is_left_alone_and_nothing_is_said(run):
    keys = {"missing": "zero", "on_error": "raise", "max_error_rate": 0.1}
    kept = carried(run(TONE | keys, GUARD | {"fail_open": True}))
    assert kept.rewards.mounts[0].missing == "zero"
    assert kept.notes == ()


def test_a_bound_that_is_given_up_is_said(run):
    kept = carried(run(TONE | {"missing": "zero", "on_error": {"default": -1.0}}))
    assert kept.rewards.mounts[0].on_error.default == -1.0
    assert [note.partition(":")[0] for note in kept.notes] == ["no max_error_rate (tone)"]


PLUGIN = """
from verl_reward_sdk import RewardProvider, hookimpl

VERL_REWARD_API = 1


class Pairs(RewardProvider):
    name = "pairs"
    scope = "group"

    def score(self, batch):
        return [0.0] * len(batch)


class Tokens(Pairs):
    name = "tokens"
    scope = "row"
    token_scores = True


@hookimpl
def verl_reward_providers():
    return [Pairs, Tokens]
"""


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ("pairs", "a reward that compares the responses of a group (pairs)"),
        ("tokens", "token rewards (tokens): it takes one number a row"),
    ],
)
def test_a_provider_of_groups_or_tokens_is_refused_at_its_mount(run, plugin_site, plugin, said):
    from verl_core.rewards import RewardEngine

    names = {"pairs": "pairs_plugin", "tokens": "pairs_plugin"}
    plugin_site.add("pairs-plugin", rewards=names, files={"pairs_plugin.py": PLUGIN})
    cfg = run({"type": "mine", "plugin": plugin})
    engine = RewardEngine.from_config(carried(cfg).rewards)
    with pytest.raises(ConfigError, match="verl cannot carry") as caught:
        check_engine(cfg, engine)
    engine.close()
    assert said in str(caught.value)
    assert "run.yaml:" in str(caught.value)
    assert "reward.mine" in str(caught.value)


def test_a_policy_that_learns_from_steps_is_refused_whatever_its_name(run, plugin_site):
    from verl_core.rewards import RewardEngine

    plugin_site.add(
        "pairs-plugin",
        rewards={"tokens": "pairs_plugin"},
        files={"pairs_plugin.py": PLUGIN.replace("token_scores = True", "")},
    )
    cfg = run({"type": "mine", "plugin": "tokens"})
    engine = RewardEngine.from_config(carried(cfg).rewards)

    class Learning(type(engine.policy)):
        def step_end(self, raw_means: dict[str, float]) -> None: ...

    check_engine(cfg, engine)
    engine.policy = Learning()
    with pytest.raises(ConfigError, match="the means of whole steps"):
        check_engine(cfg, engine)
    engine.close()
