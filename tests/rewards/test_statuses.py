"""Statuses of rows and the policies for rows without a score."""

from __future__ import annotations

import math

import numpy as np
import pytest

from verl_reward_sdk import ConfigError, RewardError

LENIENT = {"max_error_rate": 1.0}


def fused(table):
    return [None if math.isnan(value) else value for value in table.fused]


def mount(kit, name, **keys):
    return {"type": name, "provider": kit.column(name), **keys}


# -- missing: --------------------------------------------------------------------------------------


def test_neutral_takes_the_mean_of_the_scored_rows_in_the_group(kit, engine):
    columns = {"a": [1.0, 2.0, None, 10.0, None, 20.0], "b": [0.5] * 6}
    table = engine(mount(kit, "a"), mount(kit, "b")).score(
        kit.batch(columns=columns, group_ids=["x", "x", "x", "y", "y", "y"])
    )
    assert fused(table) == [1.5, 2.5, 2.0, 10.5, 15.5, 20.5]
    assert table.columns["a"].status.tolist()[2] == "abstained"
    assert math.isnan(table.columns["a"].scores[2])
    assert table.columns["a"].normalised[2] == 1.5


def test_a_group_without_any_score_takes_the_mean_of_the_step(kit, engine):
    columns = {"a": [1.0, 3.0, None, None], "b": [0.0, 0.0, 0.5, 0.75]}
    table = engine(mount(kit, "a"), mount(kit, "b")).score(
        kit.batch(columns=columns, group_ids=[0, 0, 1, 1])
    )
    assert fused(table) == [1.0, 3.0, 2.5, 2.75]  # no advantage from it inside the group


def test_a_row_without_group_takes_the_mean_of_the_step(kit, engine):
    columns = {"a": [1.0, 3.0, None], "b": [0.0, 0.0, 0.5]}
    table = engine(mount(kit, "a"), mount(kit, "b")).score(kit.batch(columns=columns))
    assert fused(table) == [1.0, 3.0, 2.5]


def test_a_mount_without_any_score_in_the_step_adds_nothing_and_other_weights_stay(kit, engine):
    columns = {"a": [None, None], "b": [0.5, 0.25]}
    table = engine(mount(kit, "a", weight=5.0), mount(kit, "b", weight=2.0)).score(
        kit.batch(columns=columns)
    )
    assert fused(table) == [1.0, 0.5]
    assert table.columns["a"].contribution.tolist() == [0.0, 0.0]
    assert table.weights == {"a": 5.0, "b": 2.0}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"missing": "zero"}, [1.0, 0.0]),
        ({"missing": "mask"}, [1.0, None]),
        ({"missing": "zero", "scale": 2.0, "clip": [0.5, 1.5]}, [1.5, 0.5]),
    ],
)
def test_missing_zero_and_mask(kit, engine, keys, expected):
    columns = {"a": [1.0, None], "b": [0.0, 0.0]}
    table = engine(mount(kit, "a", **keys), mount(kit, "b")).score(kit.batch(columns=columns))
    assert fused(table) == expected
    if keys["missing"] == "mask":
        assert table.mask_reason == (None, "a abstained")
        assert table.masked.tolist() == [False, True]
        assert table.in_baseline.tolist() == [True, False]


# -- on_error: -------------------------------------------------------------------------------------


def test_a_failed_row_is_masked_unless_the_config_says_otherwise(kit, engine):
    columns = {"a": [1.0, "it broke"], "b": [0.5, 0.5]}
    table = engine(mount(kit, "a"), mount(kit, "b")).score(kit.batch(columns=columns))
    assert fused(table) == [1.5, None]
    assert table.mask_reason == (None, "a failed")
    assert table.columns["a"].reasons == (None, "it broke")
    for column in table.columns.values():
        assert math.isnan(column.contribution[1])


@pytest.mark.parametrize(
    ("on_error", "missing", "expected"),
    [
        ("abstain", "neutral", [1.5, 1.5]),
        ("abstain", "zero", [1.5, 0.5]),
        ("abstain", "mask", [1.5, None]),
        ({"default": -2.0}, "neutral", [1.5, -1.5]),
    ],
)
def test_on_error_abstain_and_default(kit, engine, on_error, missing, expected):
    columns = {"a": [1.0, "it broke"], "b": [0.5, 0.5]}
    table = engine(mount(kit, "a", on_error=on_error, missing=missing), mount(kit, "b")).score(
        kit.batch(columns=columns)
    )
    assert fused(table) == expected
    assert table.columns["a"].status.tolist() == ["ok", "failed"]
    assert math.isnan(table.columns["a"].scores[1])  # no score is made up


def test_on_error_raise_ends_the_step_at_the_first_failed_row(kit, engine):
    columns = {"a": [1.0] * 9 + ["it broke"]}
    with pytest.raises(RewardError, match=r"step 3 .*a: 1 of 10 rows.*on_error: raise.*it broke"):
        engine(mount(kit, "a", on_error="raise")).score(kit.batch(columns=columns))


def test_the_provider_error_is_the_cause_of_the_step_error(kit, engine):
    def crash(batch):
        raise OSError("no disk")

    with pytest.raises(RewardError, match="OSError: no disk") as caught:
        engine({"type": "m", "provider": kit.says(crash)}).score(kit.batch(2))
    assert isinstance(caught.value.__cause__, OSError)


# -- max_error_rate: -------------------------------------------------------------------------------


def test_more_failures_than_max_error_rate_end_the_step(kit, engine):
    built = engine(mount(kit, "a", max_error_rate=0.25))
    at_bound = kit.batch(columns={"a": [1.0, 1.0, 1.0, "no"]})
    assert fused(built.score(at_bound)) == [1.0, 1.0, 1.0, None]
    with pytest.raises(RewardError, match=r"a: 2 of 4 rows failed \(max_error_rate 0.25\): no"):
        built.score(kit.batch(columns={"a": [1.0, 1.0, "no", "no"]}))


def test_every_mount_over_its_bound_is_named(kit, engine):
    columns = {"a": ["x", "x"], "b": ["y", "y"]}
    with pytest.raises(RewardError, match=r"a: 2 of 2 .*: x; b: 2 of 2 .*: y"):
        engine(mount(kit, "a"), mount(kit, "b")).score(kit.batch(columns=columns))


def test_rows_that_were_not_asked_are_outside_the_error_rate(kit, engine):
    columns = {"a": ["no", 1.0, 1.0, 1.0], "b": [0.0] * 4, "k": ["m", "m", "c", "c"]}
    built = engine(mount(kit, "a", applies_to="k == 'm'", max_error_rate=0.4), mount(kit, "b"))
    with pytest.raises(RewardError, match="1 of 2 rows"):
        built.score(kit.batch(columns=columns))


def test_serving_has_no_step_and_no_error_rate(kit, engine):
    batch = kit.batch(columns={"a": ["no", "no"]}, step=None, training=False)
    assert fused(engine(mount(kit, "a")).score(batch)) == [None, None]


@pytest.mark.parametrize("on_error", ["mask", "raise"])
def test_a_mount_of_weight_zero_is_only_observed(kit, engine, on_error):
    columns = {"a": ["no", "no", None], "b": [0.5, 0.25, 0.0]}
    table = engine(
        mount(kit, "a", weight=0.0, on_error=on_error, missing="mask"), mount(kit, "b")
    ).score(kit.batch(columns=columns))
    assert fused(table) == [0.5, 0.25, 0.0]
    assert not table.masked.any()
    assert table.metrics()["reward/a/failed"] == pytest.approx(2 / 3)


# -- no reward: ------------------------------------------------------------------------------------


def test_a_row_without_a_score_from_any_mount_is_masked(kit, engine):
    columns = {"a": [1.0, None, 3.0], "b": [0.5, None, None]}
    table = engine(mount(kit, "a"), mount(kit, "b")).score(
        kit.batch(columns=columns, group_ids=[0, 0, 0])
    )
    assert fused(table) == [1.5, None, 3.5]
    assert table.mask_reason == (None, "no reward", None)


def test_an_observed_score_does_not_make_a_row_a_scored_one(kit, engine):
    columns = {"a": [1.0, None], "b": [0.5, 0.5]}
    table = engine(mount(kit, "a"), mount(kit, "b", weight=0.0)).score(kit.batch(columns=columns))
    assert table.mask_reason == (None, "no reward")


def test_asked_for_zeros_and_defaults_count_as_scores(kit, engine):
    zero = engine(mount(kit, "a", missing="zero")).score(kit.batch(columns={"a": [1.0, None]}))
    assert fused(zero) == [1.0, 0.0]
    default = engine(mount(kit, "a", on_error={"default": 0.5})).score(
        kit.batch(columns={"a": [1.0, "no"]})
    )
    assert fused(default) == [1.0, 0.5]


def test_all_weights_zero_where_allowed_gives_zeros(kit, engine):
    table = engine(mount(kit, "a", weight=0.0), allow_zero=True).score(
        kit.batch(columns={"a": [1.0, 2.0]})
    )
    assert fused(table) == [0.0, 0.0]


def test_every_row_masked_by_rewards_is_a_table_and_no_error(kit, engine):
    table = engine(mount(kit, "a")).score(kit.batch(columns={"a": [None, None]}))
    assert table.masked.all()
    assert "reward/fused/mean" not in table.metrics()


# -- not_applicable --------------------------------------------------------------------------------


def test_rows_a_mount_does_not_apply_to_are_outside_its_statistics_and_sum(kit, engine):
    columns = {"a": [1.0, 9.0, 3.0], "b": [0.5] * 3, "source": ["math", "chat", "math"]}
    table = engine(
        mount(kit, "a", applies_to='source == "math"', missing="mask"), mount(kit, "b")
    ).score(kit.batch(columns=columns))
    assert fused(table) == [1.5, 0.5, 3.5]
    figures = table.metrics()
    assert figures["reward/a/mean"] == 2.0
    assert figures["reward/a/not_applicable"] == pytest.approx(1 / 3)
    assert figures["reward/a/abstained"] == 0.0


def test_a_value_that_a_condition_cannot_compare_names_mount_row_and_value(kit, engine):
    columns = {"a": [1.0, 1.0], "level": [3, "high"]}
    with pytest.raises(ConfigError, match=r"reward\.a\.applies_to: .*row 1.*'high' >= 2"):
        engine(mount(kit, "a", applies_to="level >= 2")).score(kit.batch(columns=columns))


def test_a_value_that_is_neither_true_nor_false_names_mount_and_row(kit, engine):
    columns = {"a": [1.0, 1.0], "level": [1, np.array([1, 2])]}
    with pytest.raises(ConfigError, match=r"reward\.a\.applies_to: .*row 1 .*cannot be decided"):
        engine(mount(kit, "a", applies_to="level == 1")).score(kit.batch(columns=columns))


@pytest.mark.parametrize("name", ["finish_reason", "responses"])
def test_a_reward_cannot_apply_by_what_the_policy_wrote(kit, engine, name):
    with pytest.raises(ConfigError, match=f"'{name}', which the policy writes"):
        engine(mount(kit, "a", applies_to=f"{name} == 'stop'"))


# -- the algebra of bits ---------------------------------------------------------------------------


def test_neutral_means_do_not_depend_on_the_order_of_rows(kit, engine):
    rng = np.random.default_rng(0)
    scores = [*rng.normal(size=9).tolist(), None]
    built = engine(mount(kit, "a"), mount(kit, "b"))
    expected = None
    for _ in range(20):
        order = rng.permutation(10).tolist()
        columns = {"a": [scores[i] for i in order], "b": [0.0] * 10}
        table = built.score(kit.batch(columns=columns, group_ids=[0] * 10))
        value = table.fused[order.index(9)]
        expected = value if expected is None else expected
        assert value == expected
