"""Every policy, `normalize:` and what they learn, through the engine: from config to table."""

from __future__ import annotations

import math

import numpy as np
import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import POLICY_OPTIONS, FusionConfig, RewardsConfig
from verl_core.rewards import RewardEngine, WeightStore
from verl_core.rewards.fusion import POLICIES, fusion_policy
from verl_core.rewards.schedules import Linear
from verl_core.rewards.weights import WeightError
from verl_reward_sdk import ConfigError, ContractError, RewardResult

GROUPS = [0, 0, 0, 0]


def mount(kit, name, score_range=(0.0, 1.0), **keys):
    """A mount whose scores stand in the column `name`."""
    provider = type(f"Column_{name}", (kit.column,), {"score_range": score_range})(name)
    return {"type": name, "provider": provider, **keys}


def batch(kit, groups=GROUPS, **fields):
    columns = {name: fields.pop(name) for name in list(fields) if len(name) == 1}
    return kit.batch(columns=columns, group_ids=groups, **fields)


# -- policies -------------------------------------------------------------------------------------


def test_the_options_that_the_config_knows_are_those_of_the_policies():
    assert POLICY_OPTIONS.keys() == POLICIES.keys()
    for name, policy in POLICIES.items():
        model = getattr(policy, "Config", None)
        assert set(POLICY_OPTIONS[name]) == set(() if model is None else model.model_fields)


SCORES = {"a": [1.0, 1.0, 0.0, 0.5], "b": [0.25, 0.0, 0.25, 0.5]}
THIRD = 1 / 3


@pytest.mark.parametrize(
    ("policy", "options", "fused"),
    [
        ("weighted_sum", {}, [1.25, 1.0, 0.25, 1.0]),
        ("weighted_mean", {}, [0.625, 0.5, 0.125, 0.5]),
        ("product", {}, [0.5, 0.0, 0.0, 0.5]),
        ("min", {}, [0.25, 0.0, 0.0, 0.5]),
        ("lexicographic", {}, [1.0, 2 * THIRD, 0.0, THIRD]),
        ("lexicographic", {"tolerance": {"a": 2.0}}, [THIRD, 0.0, THIRD, 1.0]),
        ("constrained", {"bounds": {"b": 0.5}}, [1.25, 1.0, 0.25, 1.0]),
    ],
)
def test_each_policy_fuses_by_its_name_and_options(kit, engine, policy, options, fused):
    built = engine(mount(kit, "a"), mount(kit, "b"), policy=policy, fusion=options)
    table = built.score(batch(kit, **SCORES))
    assert table.fused == pytest.approx(fused, abs=1e-15)
    assert table.additive is POLICIES[policy].additive
    explained = table.explain(0)
    assert explained["additive"] is table.additive
    if table.additive:
        parts = [part["contribution"] for part in explained["mounts"].values()]
        assert sum(parts) == pytest.approx(explained["fused"])


@pytest.mark.parametrize(
    ("fusion", "words"),
    [
        ({"policy": "constrained"}, "fusion.bounds: missing"),
        ({"policy": "constrained", "bounds": {"a": "x"}}, "fusion.bounds.a: expected a number"),
        ({"policy": "lexicographic", "tolerance": -1.0}, "fusion.tolerance: must be at least 0"),
        ({"policy": "lexicographic", "tolerance": {"a": -1.0}}, "fusion.tolerance.a: must be at"),
        ({"policy": "prodct"}, "'prodct' (did you mean 'product'?"),
    ],
)
def test_options_that_a_policy_cannot_take_are_told_with_their_place(fusion, words):
    with pytest.raises(ConfigError) as refused:
        fusion_policy(FusionConfig(**fusion), None)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("fusion", "words"),
    [
        ({"polcy": "min"}, "did you mean 'policy'"),
        ({"policy": "lexicographic", "tolerence": 1.0}, "did you mean 'tolerance'"),
        ({"bounds": {"a": 1.0}}, "an option of constrained, and policy is weighted_sum"),
    ],
)
def test_an_option_of_no_or_another_policy_is_refused_with_the_config(fusion, words):
    with pytest.raises(ValueError, match=words):
        FusionConfig(**fusion)


# -- what is refused at load, and live ------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"score_range": (-1.0, 1.0)}, r"reward\.a: .*lie in \[-1, 1\]"),
        ({"scale": -1.0}, r"lie in \[-1, -?0\]"),
        ({"on_error": {"default": 2.0}}, r"lie in \[0, 2\]"),
        ({"normalize": "group"}, r"lie in \[-inf, inf\]"),
        ({"score_range": (0.5, 2.0), "missing": "zero", "clip": [0.75, 1.5]}, r"\[0\.75, 1\.5\]"),
    ],
)
def test_a_product_with_values_outside_0_to_1_is_refused_at_load(kit, engine, keys, words):
    with pytest.raises(ConfigError, match=words):
        engine(mount(kit, "a", **keys), mount(kit, "b"), policy="product")


def test_a_product_takes_scores_that_clip_brings_into_0_to_1(kit, engine):
    wide = mount(kit, "a", (-1.0, 9.0), clip=[0.0, 1.0])
    table = engine(wide, policy="product").score(batch(kit, a=[-1.0, 0.25, 9.0, 1.0]))
    assert table.fused.tolist() == [0.0, 0.25, 1.0, 1.0]


@pytest.mark.parametrize("policy", ["min", "lexicographic"])
def test_a_weight_that_the_policy_refuses_at_load_is_refused_live_and_at_every_step(
    kit, engine, policy
):
    with pytest.raises(ConfigError, match=r"reward\.a\.weight: .*weight of 2"):
        engine(mount(kit, "a", weight=2.0), mount(kit, "b"), policy=policy)
    later = {"step": {"from": 1.0, "at": [[7, 2.0]]}}
    with pytest.raises(ConfigError, match=r"at step 7: reward\.a\.weight: .*weight of 2"):
        engine(mount(kit, "a", weight=later), mount(kit, "b"), policy=policy)
    built = engine(mount(kit, "a"), mount(kit, "b"), policy=policy)
    with pytest.raises(WeightError, match="weight of 2"):
        built.store.update({"a": 2.0}, author="test")
    assert built.store.update({"a": 0.0}, author="test").weights == {"a": 0.0, "b": 1.0}


def test_a_bounded_mount_is_never_only_observed_not_even_at_a_later_step(kit, engine):
    bounds = {"bounds": {"a": 0.5}}
    fading = {"linear": {"from": 1.0, "to": 0.0, "steps": 4}}
    with pytest.raises(ConfigError, match=r"at step 4: .*only observed"):
        engine(mount(kit, "a", weight=fading), mount(kit, "b"), policy="constrained", fusion=bounds)
    built = engine(mount(kit, "a"), mount(kit, "b"), policy="constrained", fusion=bounds)
    with pytest.raises(WeightError, match="only observed"):
        built.store.update({"a": 0.0}, author="test")


def test_a_store_of_the_callers_asks_the_policy_too(kit, engine):
    store = WeightStore({"a": 1.0, "b": 1.0})
    engine(mount(kit, "a"), mount(kit, "b"), policy="min", store=store)
    with pytest.raises(WeightError, match="weight of 3"):
        store.update({"b": 3.0}, author="test")
    rising = WeightStore({"a": 1.0, "b": Linear(1.0, 2.0, 4)})
    with pytest.raises(ConfigError, match=r"at step 1: .*min has no use"):
        engine(mount(kit, "a"), mount(kit, "b"), policy="min", store=rising)


def test_a_bound_on_a_mount_that_is_turned_round_is_refused(kit, engine):
    with pytest.raises(ConfigError, match=r"fusion\.bounds\.a: .*scale: -2"):
        engine(mount(kit, "a", scale=-2.0), policy="constrained", fusion={"bounds": {"a": 0.5}})


@pytest.mark.parametrize("policy", ["product", "min", "lexicographic"])
@pytest.mark.parametrize("key", ["when", "only_if"])
def test_a_policy_that_does_not_add_leaves_no_mount_out_by_a_condition(kit, engine, policy, key):
    keys = {key: "a >= 1", **({"after": ["a"]} if key == "only_if" else {})}
    with pytest.raises(ConfigError, match=rf"reward\.b\.{key}: .*additive"):
        engine(mount(kit, "a"), mount(kit, "b", **keys), policy=policy)


def token_mount(kit, **keys):
    def answer(batch):
        scores = [[0.25] * len(ids) for ids in batch.response_ids]
        return RewardResult(scores=[sum(row) for row in scores], token_scores=scores)

    return {
        "type": "t",
        "provider": kit.says(answer, token_scores=True, **keys.pop("of", {})),
        **keys,
    }


@pytest.mark.parametrize(
    ("policy", "keys", "words"),
    [
        ("min", {}, r"fusion\.policy: min cannot place the token scores"),
        ("product", {"clip": [0.0, 1.0]}, r"fusion\.policy: product cannot place"),
        ("lexicographic", {}, r"fusion\.policy: lexicographic cannot place"),
        ("weighted_sum", {"normalize": "group"}, r"reward\.t\.normalize: normalize: group"),
    ],
)
def test_token_scores_that_cannot_be_placed_are_refused_at_load(kit, engine, policy, keys, words):
    with pytest.raises(ConfigError, match=words):
        engine(token_mount(kit, **keys), policy=policy)


@pytest.mark.parametrize(
    ("policy", "fusion", "factor"),
    [
        ("weighted_sum", {}, 6.0),
        ("weighted_mean", {}, 1.5),
        ("constrained", {"bounds": {"t": 4.0}, "rate": 1.0}, 14.0),
    ],
)
def test_token_scores_are_scaled_by_scale_times_what_the_mount_counts(
    kit, engine, policy, fusion, factor
):
    built = engine(
        token_mount(kit, weight=3.0, scale=2.0), mount(kit, "a"), policy=policy, fusion=fusion
    )
    ids = [np.arange(2), np.arange(0), np.arange(1)]
    step = batch(kit, [0, 0, 0], a=[0.0, 0.0, 0.0], response_ids=ids)
    table = built.score(step)
    if fusion:  # the mean is (0.5 + 0 + 0.25) / 3 = 0.25, 3.75 under its bound
        built.step_end(table)
        table = built.score(step)
        factor = 2.0 * (3.0 + 3.75)
    (part,) = table.token_parts
    assert part.factor == pytest.approx(factor)
    assert table.fused == pytest.approx([factor * 0.5, 0.0, factor * 0.25])


def test_lexicographic_is_refused_for_a_batch_without_groups(kit, engine):
    built = engine(mount(kit, "a"), policy="lexicographic")
    with pytest.raises(ConfigError, match=r"fusion\.policy: lexicographic .*no groups"):
        built.score(kit.batch(columns={"a": [0.5, 1.0]}))


def test_nobody_is_compared_with_a_masked_row(kit, engine):
    built = engine(mount(kit, "a"), mount(kit, "b", missing="mask"), policy="lexicographic")
    table = built.score(batch(kit, [0, 0, 0], a=[0.2, 0.5, 0.9], b=[0.0, 0.0, None]))
    assert table.masked.tolist() == [False, False, True]
    assert table.fused[:2].tolist() == [0.0, 1.0]


# -- normalize ------------------------------------------------------------------------------------


def test_a_mount_is_normalised_between_clip_and_weight(kit, engine):
    built = engine(
        mount(kit, "a", normalize="group", scale=2.0, clip=[0.0, 1.0], weight=3.0),
        mount(kit, "b"),
    )
    table = built.score(batch(kit, [0, 0, 1, 1], a=[0.1, 0.9, 0.4, 0.4], b=[0.0, 0.0, 0.5, 0.5]))
    # 0.2 and 1.0 after scale and clip; two values lie 1/√2 deviations from their mean
    half = math.sqrt(0.5)
    assert table.fused == pytest.approx([-3 * half, 3 * half, 0.5, 0.5])
    explained = table.explain(1)["mounts"]["a"]
    assert explained["raw"] == 0.9
    assert explained["normalised"] == pytest.approx(half)
    assert explained["contribution"] == pytest.approx(3 * half)
    assert table.metrics()["reward/a/mean"] == pytest.approx(0.45)  # of raw scores


def test_batch_compares_with_the_whole_step(kit, engine):
    built = engine(mount(kit, "a", normalize="batch"))
    table = built.score(batch(kit, [0, 0, 1, 1], a=[0.0, 0.0, 1.0, 1.0]))
    assert table.fused == pytest.approx(np.array([-1, -1, 1, 1]) * math.sqrt(3 / 4))


def test_a_masked_row_is_in_no_mean_of_normalize(kit, engine):
    built = engine(mount(kit, "a", normalize="group"), mount(kit, "b", missing="mask", weight=0.5))
    columns = {"a": [0.0, 0.5, 1.0], "b": [0.0, 0.0, None]}
    table = built.score(batch(kit, [0, 0, 0], **columns))
    assert table.fused[:2] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    assert math.isnan(table.fused[2])


def test_a_mount_whose_condition_had_no_answer_lifts_no_row_by_its_normalised_score(kit, engine):
    built = engine(
        mount(kit, "a", weight=0.01),
        mount(kit, "b", normalize="group", when="a >= 1"),
    )
    table = built.score(batch(kit, a=[1.0, None, 1.0, 1.0], b=[0.0, 1.0, 0.25, 0.5]))
    assert table.columns["b"].normalised[1] == 0.0
    assert table.columns["b"].normalised[3] > 0.0
    assert table.columns["b"].unsure.tolist() == [False, True, False, False]


def test_running_changes_at_the_end_of_a_training_step_and_at_no_other_time(kit, engine):
    built = engine(mount(kit, "a", (-9.0, 9.0), normalize="running"))
    step = batch(kit, a=[1.0, 2.0, 3.0, 4.0], step=1)
    first = built.score(step)
    again = built.score(step)
    assert first.fused.tolist() == again.fused.tolist()
    built.step_end(first)
    built.step_end(first)  # once a step, whenever it is said
    assert built.state()["fusion"]["running"]["a"]["count"] == 4
    later = built.score(batch(kit, a=[2.5, 0.0, 2.5, 0.0], step=2))
    spread = np.std([1.0, 2.0, 3.0, 4.0], ddof=1)
    assert later.fused == pytest.approx([0.0, -2.5 / spread, 0.0, -2.5 / spread])
    evaluated = built.score(batch(kit, a=[2.5, 0.0, 2.5, 0.0], step=2, training=False))
    with pytest.raises(ValueError, match="only training steps"):
        built.step_end(evaluated)
    assert built.state()["fusion"]["running"]["a"]["count"] == 4


def test_a_score_that_no_spread_can_be_had_of_is_refused_with_its_row(kit, engine):
    built = engine(mount(kit, "a", (-math.inf, math.inf), normalize="batch"))
    with pytest.raises(ContractError, match=r"a: row 1: .*too large for normalize: batch"):
        built.score(batch(kit, [0, 0], a=[1.0, 1e200]))


# -- what is learnt -------------------------------------------------------------------------------


def learning(engine, kit, **keys):
    return engine(
        mount(kit, "a", normalize="running"),
        mount(kit, "b", weight=0.5),
        policy="constrained",
        fusion={"bounds": {"b": 0.75}, "rate": 1.0},
        **keys,
    )


def test_multipliers_move_by_the_mean_that_is_logged_and_are_logged(kit, engine):
    built = learning(engine, kit)
    table = built.score(batch(kit, a=[0.0, 1.0, 0.0, 1.0], b=[0.5, None, 0.25, 0.0]))
    assert table.metrics()["reward/b/multiplier"] == 0.0
    built.step_end(table)
    moved = 0.75 - table.metrics()["reward/b/mean"]
    after = built.score(batch(kit, a=[0.0, 1.0, 0.0, 1.0], b=[0.5, 1.0, 0.25, 0.0], step=4))
    assert after.metrics()["reward/b/multiplier"] == pytest.approx(moved)
    explained = after.explain(0)
    assert explained["mounts"]["b"]["contribution"] == pytest.approx((0.5 + moved) * 0.5)


def test_another_engine_of_the_same_config_learns_nothing_of_it(kit, engine):
    training, evaluation = learning(engine, kit), learning(engine, kit, frozen_weights=True)
    step = batch(kit, a=[0.0, 1.0, 0.5, 1.0], b=[0.0, 0.25, 0.5, 1.0])
    before = evaluation.score(step).fused.tolist()
    training.step_end(training.score(step))
    assert training.score(step).fused.tolist() != before
    assert evaluation.score(step).fused.tolist() == before


def test_an_engine_goes_on_from_the_state_of_another(kit, engine):
    one, other = learning(engine, kit), learning(engine, kit)
    random = np.random.default_rng(0)
    for step in (1, 2, 3):
        rows = batch(kit, a=random.random(4).tolist(), b=random.random(4).tolist(), step=step)
        one.step_end(one.score(rows))
    other.load_state(one.state())
    assert other.state() == one.state()
    rows = batch(kit, a=random.random(4).tolist(), b=random.random(4).tolist(), step=4)
    assert other.score(rows).fused.tolist() == one.score(rows).fused.tolist()
    other.step_end(other.score(batch(kit, a=[0.0] * 4, b=[0.0] * 4, step=3)))  # ended already
    assert other.state() == one.state()


def test_a_policy_or_a_mount_that_is_another_now_begins_anew_and_says_so(kit, engine, caplog):
    one = learning(engine, kit)
    one.step_end(one.score(batch(kit, a=[0.0, 1.0, 0.0, 1.0], b=[0.5] * 4)))
    other = engine(
        mount(kit, "a"), mount(kit, "b", normalize="running"),
        policy="constrained", fusion={"bounds": {"a": 0.5}},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"fusion\.bounds: .*multipliers of b"):
        other.load_state(one.state())
    plain = engine(mount(kit, "a"), mount(kit, "b", normalize="running"))
    plain.load_state(one.state())
    assert plain.state()["fusion"]["running"] == {"b": {"count": 0, "mean": 0.0, "squares": 0.0}}
    assert "reward.b.normalize: running begins anew" in caplog.text


def test_the_cache_hit_rate_is_a_figure_of_the_table(kit, tmp_path):
    (tmp_path / "tone.yaml").write_text("rules:\n  - {name: t, contains: answer, points: 0.5}\n")
    rules = {"plugin": "rules", "init_kwargs": {"rules": "tone.yaml"}}
    mounts = (MountConfig(type="a", cache={"rows": 8}, **rules), MountConfig(type="b", **rules))
    with RewardEngine.from_config(RewardsConfig(mounts=mounts, base_dir=tmp_path)) as built:
        first, second = (built.score(kit.batch(4)).metrics() for _ in range(2))
    assert first["reward/a/cache_hit_rate"] == 0.0
    assert second["reward/a/cache_hit_rate"] == 1.0
    assert "reward/b/cache_hit_rate" not in second
