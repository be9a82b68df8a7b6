"""RewardEngine: from config to leases."""

from __future__ import annotations

import dataclasses
import json
import math
import sys

import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.plugins import PluginRegistry
from verl_core.rewards import RewardEngine, WeightStore
from verl_core.rewards.schedules import Linear
from verl_core.rewards.weights import WeightError
from verl_reward_sdk import ConfigError, PluginError, RewardProvider


def reward(kit, name="a", **keys):
    return {"type": name, "provider": kit.column(name), **keys}


def config(*mounts, base_dir="."):
    return RewardsConfig(mounts=tuple(MountConfig(**m) for m in mounts), base_dir=base_dir)


# -- plugins, for real -----------------------------------------------------------------------------


def test_installed_plugins_are_mounted_by_name(tmp_path, kit):
    (tmp_path / "tone.yaml").write_text(
        "rules:\n  - {name: thanks, contains: thank, points: 0.5, reason: says thanks}\n"
    )
    (tmp_path / "words.txt").write_text("guaranteed\n")
    cfg = config(
        {"type": "tone", "plugin": "rules", "init_kwargs": {"rules": "tone.yaml"}},
        {
            "type": "guard",
            "plugin": "safety",
            "role": "gate",
            "penalty": -1.0,
            "init_kwargs": {"words": "words.txt"},
        },
        base_dir=tmp_path,
    )
    responses = ["thank you", "no", "thank you, guaranteed"]
    batch = dataclasses.replace(kit.batch(3), responses=responses, responses_raw=responses)
    with RewardEngine.from_config(cfg) as engine:
        table = engine.score(batch)
    assert table.fused.tolist() == [0.5, 0.0, -1.0]
    assert table.gate_severity.tolist() == ["none", "none", "veto"]


def test_a_plugin_that_is_not_installed_says_which_distribution_brings_it():
    with pytest.raises(PluginError, match=r"reward\.fair\.plugin.*'judge'.*verl-reward-judge"):
        RewardEngine.from_config(config({"type": "fair", "plugin": "judge"}))


def test_a_providers_config_is_checked_at_load_with_its_path(tmp_path):
    wrong = {"type": "tone", "plugin": "rules", "init_kwargs": {"rulez": "tone.yaml"}}
    with pytest.raises(ConfigError, match=r"reward\.tone\.init_kwargs\.rulez.*'rules'"):
        RewardEngine.from_config(config(wrong, base_dir=tmp_path))
    absent = {"type": "tone", "plugin": "rules", "init_kwargs": {"rules": "none.yaml"}}
    with pytest.raises(ConfigError, match=r"reward\.tone\.init_kwargs\.rules.*none\.yaml"):
        RewardEngine.from_config(config(absent, base_dir=tmp_path))


def test_building_an_engine_loads_nothing(tmp_path, kit, engine):
    loaded = []

    class Heavy(RewardProvider):
        """Says when it loads."""

        def __init__(self):
            pass

        def setup(self):
            loaded.append(True)

        def score(self, batch):
            return [1.0] * len(batch)

    built = engine({"type": "m", "provider": Heavy})
    assert built.describe()[0]["state"] == "new"
    assert loaded == []
    built.setup()
    built.setup()
    assert loaded == [True]
    built.close()


def test_a_node_needs_a_node_factory():
    cfg = config({"type": "custom", "node_class": "safety_reward.SafetyRewardNode"})
    with pytest.raises(ConfigError, match=r"reward\.safety_reward\.node_class.*node_factory"):
        RewardEngine.from_config(cfg)


def test_a_provider_that_cannot_be_constructed_is_a_config_error(kit, engine):
    def refuse():
        raise KeyError("device")

    with pytest.raises(ConfigError, match=r"reward\.m: .*cannot be constructed: KeyError"):
        engine({"type": "m", "provider": refuse})


def test_an_unknown_policy_names_the_nearest(kit, engine):
    with pytest.raises(ConfigError, match=r"fusion\.policy.*'weighted_sum'"):
        engine(reward(kit), policy="weighted_sums")


# -- a policy of a plugin --------------------------------------------------------------------------


EXTENSION = '''
import numpy as np
from verl_reward_sdk import ConfigError, Fused, hookimpl

VERL_REWARD_API = 1
SEEN = []


class Largest:
    """The largest weighted score; refuses negative ranges."""

    name = "largest"
    additive = False

    def check(self, mounts):
        for mount in mounts:
            if mount.score_range[0] < 0:
                raise ConfigError(f"{mount.name} may be below 0")

    def fuse(self, scores, present, weights, groups):
        weighted = np.where(present, scores * weights, -np.inf)
        values = weighted.max(axis=1)
        without = [np.delete(weighted, m, axis=1).max(axis=1, initial=0.0) for m in range(2)]
        return Fused(values, np.stack([values - w for w in without], axis=1))


@hookimpl
def verl_reward_fusion_policies():
    yield Largest


@hookimpl
def verl_reward_batch_scored(table):
    SEEN.append(table)
'''


@pytest.fixture
def registry_with_policy(monkeypatch, tmp_path):
    """A registry with an installed extension that offers a policy and observes."""
    info = tmp_path / "largest_ext-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: largest-ext\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[verl_reward_extensions]\nlargest = largest_ext_module\n"
    )
    (tmp_path / "largest_ext_module.py").write_text(EXTENSION)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = PluginRegistry()
    registry.load_extensions(["largest"])
    yield registry
    sys.modules.pop("largest_ext_module", None)


def test_a_plugin_may_offer_a_policy_and_observe_batches(kit, registry_with_policy, engine):
    mounts = [
        {"type": n, "provider": kit.says(s, score_range=(0.0, 1.0))}
        for n, s in (("a", [0.2, 0.9]), ("b", [0.6, 0.1]))
    ]
    built = engine(*mounts, policy="largest", registry=registry_with_policy)
    table = built.score(kit.batch(2))
    assert table.fused.tolist() == [0.6, 0.9]
    assert table.additive is False
    explained = table.explain(0)
    assert explained["additive"] is False
    assert explained["mounts"]["b"]["contribution"] == pytest.approx(0.4)
    seen = sys.modules["largest_ext_module"].SEEN
    assert seen == [table]


def test_a_policy_refuses_mounts_at_load_and_sees_the_scaled_range(
    kit, registry_with_policy, engine
):
    negative = {"type": "a", "provider": kit.says([0.0], score_range=(-1.0, 1.0))}
    with pytest.raises(ConfigError, match=r"fusion\.policy: a may be below 0"):
        engine(negative, policy="largest", registry=registry_with_policy)
    clipped = {**negative, "clip": [0.0, 0.5]}
    engine(clipped, policy="largest", registry=registry_with_policy)


def test_a_policy_that_does_not_add_refuses_when(kit, registry_with_policy, engine):
    mounts = [
        {"type": n, "provider": kit.says([1.0], score_range=(0.0, 1.0)), **keys}
        for n, keys in (("a", {}), ("b", {"when": "a >= 1"}))
    ]
    with pytest.raises(ConfigError, match=r"reward\.b\.when.*additive"):
        engine(*mounts, policy="largest", registry=registry_with_policy)


# -- weights and leases ----------------------------------------------------------------------------


def test_a_live_change_takes_effect_with_the_next_lease_and_never_within_one(kit, engine):
    store = WeightStore({"a": 1.0}, run_id="run")
    built = engine(reward(kit), store=store)
    batch = kit.batch(columns={"a": [1.0]})
    lease = built.lease(3)
    store.update({"a": 5.0}, author="test")
    assert built.score(batch, lease=lease).fused.tolist() == [1.0]
    assert built.lease(3) == lease  # a step's lease is fixed
    after = built.score(batch, lease=built.lease(4))
    assert after.fused.tolist() == [5.0]
    assert after.revision > lease.revision
    assert after.weights == {"a": 5.0}


def test_scoring_without_a_lease_is_one_of_its_own_at_the_batchs_step(kit, engine):
    schedule = {"linear": {"from": 2.0, "to": 0.0, "steps": 10}}
    built = engine(reward(kit, weight=schedule), reward(kit, "b"))
    columns = {"a": [1.0], "b": [0.0]}
    values = [built.score(kit.batch(columns=columns, step=s)).fused[0] for s in (0, 5, 10)]
    assert values == [2.0, 1.0, 0.0]


def test_a_lease_carries_revision_generations_and_weights_in_config_order(kit, engine):
    gate = {
        "type": "g",
        "provider": kit.gate_column("g"),
        "role": "gate",
        "penalty": -1.0,
    }
    built = engine(reward(kit, "z"), gate, reward(kit, "a", weight=0.5))
    lease = built.lease()
    assert list(lease.weights.items()) == [("z", 1.0), ("a", 0.5)]
    assert lease.generations == {"z": 1, "g": 1, "a": 1}
    table = built.score(kit.batch(columns={"z": [1.0], "a": [1.0], "g": ["none"]}), lease=lease)
    assert table.generations == lease.generations
    assert table.revision == lease.revision
    assert math.isnan(table.columns["g"].weight)


def test_frozen_weights_are_those_of_step_zero_and_follow_nothing(kit, engine):
    schedule = {"linear": {"from": 2.0, "to": 0.0, "steps": 10}}
    built = engine(reward(kit, weight=schedule), frozen_weights=True)
    for step in (0, 5, 100, None):
        batch = kit.batch(columns={"a": [1.0]}, step=step, training=False)
        assert built.score(batch).fused.tolist() == [2.0]
        assert built.score(batch, lease=built.lease(step)).revision == 0
    with pytest.raises(ValueError, match="give one of them"):
        engine(reward(kit), frozen_weights=True, store=WeightStore({"a": 1.0}))


def test_a_store_with_other_mounts_is_refused(kit, engine):
    with pytest.raises(ConfigError, match=r"differ in: b, c"):
        engine(reward(kit, "a"), reward(kit, "b"), store=WeightStore({"a": 1.0, "c": 1.0}))


def test_schedules_of_the_store_are_used_as_they_are(kit, engine):
    store = WeightStore({"a": Linear(0.0, 1.0, 4)}, allow_zero=True)
    built = engine(reward(kit), store=store)
    assert built.lease(2).weights == {"a": 0.5}


def test_mounts_are_summed_in_config_order(kit, engine):
    scores = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 1e16, "e": -1e16}
    for names in ("abcde", "deabc", "adbec"):
        built = engine(*(reward(kit, name) for name in names))
        total = 0.0
        for name in names:
            total += scores[name]
        table = built.score(kit.batch(columns={n: [s] for n, s in scores.items()}))
        assert table.fused.tolist() == [total]


def test_scale_then_clip_then_weight(kit, engine):
    mount = reward(kit, scale=-2.0, clip=[-1.0, 3.0], weight=10.0)
    table = engine(mount).score(kit.batch(columns={"a": [1.0, -1.0, -2.0]}))
    assert table.fused.tolist() == [-10.0, 20.0, 30.0]
    assert table.columns["a"].scores.tolist() == [1.0, -1.0, -2.0]
    assert table.columns["a"].normalised.tolist() == [-1.0, 2.0, 3.0]


def test_a_fused_reward_that_is_not_finite_is_refused_with_its_row(kit, engine):
    from verl_reward_sdk import ContractError

    built = engine(reward(kit, weight=10.0))
    with pytest.raises(ContractError, match=r"weighted_sum: row 1: .*not finite"):
        built.score(kit.batch(columns={"a": [1.0, 1.7e308]}))


def test_describe_is_json_and_counts(kit, engine):
    built = engine(reward(kit, weight=0.5), reward(kit, "b"))
    built.score(kit.batch(columns={"a": [1.0, "no", 1.0], "b": [1.0, 1.0, 1.0]}))
    first, second = json.loads(json.dumps(built.describe()))
    assert first["last_error"] == "no"
    assert first["seconds_mean"] > 0.0
    assert {k: first[k] for k in ("name", "role", "weight", "execution", "generation")} == {
        "name": "a",
        "role": "reward",
        "weight": 0.5,
        "execution": "inline",
        "generation": 1,
    }
    assert [(m["calls"], m["rows"], m["failures"]) for m in (first, second)] == [
        (1, 3, 1),
        (1, 3, 0),
    ]
    assert [first["state"], second["state"]] == ["degraded", "ready"]


def test_the_engines_own_store_keeps_revisions_in_a_file_and_asks_the_policy(kit, engine, tmp_path):
    path = tmp_path / "weights.db"
    built = engine(reward(kit), reward(kit, "b"), run_id="run", store_path=path)
    revision = built.store.update({"a": 3.0}, author="test").revision
    with pytest.raises(WeightError, match="c: "):
        built.store.update({"c": 1.0}, author="test")
    built.close()
    again = engine(reward(kit), reward(kit, "b"), run_id="run", store_path=path)
    assert again.lease().weights == {"a": 3.0, "b": 1.0}
    assert again.lease().revision == revision
