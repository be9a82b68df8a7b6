"""Every fusion policy on small cases that are worked out by hand, and what each refuses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from pydantic import ValidationError

from verl_core.rewards.fusion.constrained import Constrained, ConstrainedConfig
from verl_core.rewards.fusion.lexicographic import Lexicographic, LexicographicConfig
from verl_core.rewards.fusion.minimum import Minimum
from verl_core.rewards.fusion.product import Product
from verl_core.rewards.fusion.weighted_mean import WeightedMean
from verl_reward_sdk import ConfigError, ContractError
from verl_reward_sdk.protocols import FusionPolicy, MountInfo

NAN = math.nan


def infos(weights, ranges=None):
    """Mounts a, b, c, … with these weights; their scores lie in [0, 1] unless `ranges` says."""
    ranges = ranges or [(0.0, 1.0)] * len(weights)
    return [
        MountInfo(name, weight, "reward", bounds)
        for name, weight, bounds in zip("abcdefgh", weights, ranges, strict=False)
    ]


def fuse(policy, rows, weights, groups=None):
    """`rows` of scores, NaN where a mount adds nothing. The policy checks its mounts first."""
    scores = np.array(rows, dtype=np.float64)
    policy.check(infos(weights, [(-9.0, 9.0)] * len(weights) if policy.name != "product" else None))
    numbers = np.zeros(len(scores), dtype=np.int64) if groups is None else np.array(groups)
    return policy.fuse(scores, ~np.isnan(scores), np.array(weights, dtype=np.float64), numbers)


POLICIES = [
    WeightedMean(),
    Product(),
    Minimum(),
    Lexicographic(),
    Constrained(ConstrainedConfig(bounds={"a": 0.5})),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
class TestEveryPolicy:
    def test_has_the_shape_that_the_sdk_names(self, policy):
        assert isinstance(policy, FusionPolicy)

    def test_refuses_a_config_without_a_reward(self, policy):
        with pytest.raises(ConfigError, match="role: reward"):
            policy.check([MountInfo("g", NAN, "gate", (0.0, 1.0))])

    def test_takes_no_notice_of_gates(self, policy):
        policy.check([*infos([1.0, 1.0]), MountInfo("g", NAN, "gate", (-9.0, 9.0))])

    def test_gives_zeros_for_no_rows(self, policy):
        fused = fuse(policy, np.zeros((0, 2)), [1.0, 1.0])
        assert fused.values.shape == (0,)
        assert fused.contributions.shape == (0, 2)

    def test_an_absent_mount_contributes_nothing_and_no_nan_gets_out(self, policy):
        fused = fuse(policy, [[0.5, NAN], [0.25, 1.0], [NAN, NAN]], [1.0, 1.0])
        assert np.isfinite(fused.values).all()
        assert fused.contributions[0, 1] == 0.0
        assert fused.contributions[2].tolist() == [0.0, 0.0]
        assert fused.values[2] == 0.0

    def test_a_mount_of_weight_0_changes_nothing(self, policy):
        # Of `constrained` the mount with a bound has a weight above 0.
        with_it = fuse(policy, [[0.5, 0.9], [0.25, 0.0]], [1.0, 0.0])
        alone = fuse(policy, [[0.5], [0.25]], [1.0])
        assert with_it.values.tolist() == alone.values.tolist()
        assert with_it.contributions[:, 1].tolist() == [0.0, 0.0]


def test_weighted_mean_divides_by_all_weights():
    fused = fuse(WeightedMean(), [[1.0, 0.5], [1.0, NAN]], [3.0, 1.0])
    assert fused.values.tolist() == [0.875, 0.75]
    assert fused.contributions.tolist() == [[0.75, 0.125], [0.75, 0.0]]


def test_weighted_mean_of_weights_that_are_all_0_is_0():
    assert fuse(WeightedMean(), [[1.0, 2.0]], [0.0, 0.0]).values.tolist() == [0.0]


def test_weighted_mean_of_huge_weights_does_not_overflow():
    assert fuse(WeightedMean(), [[1.0, 3.0]], [1.5e308, 1.5e308]).values.tolist() == [2.0]


def test_product_is_the_weighted_geometric_mean():
    fused = fuse(Product(), [[0.25, 1.0], [0.25, 0.0625], [0.0, 1.0]], [1.0, 1.0])
    assert fused.values == pytest.approx([0.5, 0.125, 0.0], abs=1e-15)
    # 0.5 beside 1.0 alone; 0.5 beside 0.25 alone
    assert fused.contributions[0] == pytest.approx([-0.5, 0.25], abs=1e-15)
    assert fused.contributions[2] == pytest.approx([-1.0, 0.0], abs=1e-15)


def test_product_raises_each_score_to_its_share_of_the_weights():
    fused = fuse(Product(), [[0.0625, 0.5]], [1.0, 3.0])
    assert fused.values[0] == pytest.approx(0.0625**0.25 * 0.5**0.75, abs=1e-15)
    assert fused.contributions[0] == pytest.approx(
        [fused.values[0] - 0.5, fused.values[0] - 0.0625], abs=1e-15
    )


def test_product_leaves_the_exponents_of_the_others_where_a_mount_is_absent():
    fused = fuse(Product(), [[0.25, NAN, 0.5], [NAN, NAN, 0.5]], [1.0, 2.0, 1.0])
    assert fused.values == pytest.approx([0.125**0.25, 0.5**0.25], abs=1e-15)


def test_product_of_one_mount_is_its_score_and_its_contribution():
    fused = fuse(Product(), [[0.3], [0.0]], [2.0])
    assert fused.values == pytest.approx([0.3, 0.0], abs=1e-15)
    assert fused.contributions[:, 0] == pytest.approx([0.3, 0.0], abs=1e-15)


@pytest.mark.parametrize(
    "bounds", [(-0.1, 1.0), (0.0, 1.5), (-math.inf, math.inf), (NAN, 1.0)], ids=str
)
def test_product_refuses_scores_that_can_leave_0_to_1(bounds):
    with pytest.raises(ConfigError, match=r"reward\.b: .* b lie in") as refused:
        Product().check(infos([1.0, 0.0], [(0.0, 1.0), bounds]))
    assert "[0, 1]" in str(refused.value)


def test_product_names_row_value_and_bound_of_a_score_that_got_out_all_the_same():
    with pytest.raises(ContractError, match="reward number 2") as refused:
        fuse(Product(), [[0.5, 0.5], [0.5, 5.0]], [1.0, 1.0])
    assert (refused.value.row, refused.value.value) == (1, 5.0)


def test_min_takes_the_lowest_and_blames_the_mount_that_alone_is_lowest():
    fused = fuse(Minimum(), [[0.5, 0.2, 0.4], [0.3, 0.3, 0.9], [NAN, 0.7, -2.0]], [1.0] * 3)
    assert fused.values.tolist() == [0.2, 0.3, -2.0]
    expected = [[0.0, -0.2, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, -2.7]]
    assert fused.contributions == pytest.approx(np.array(expected), abs=1e-15)


def test_min_of_one_mount_is_its_score_and_its_contribution():
    fused = fuse(Minimum(), [[-0.5, 0.1]], [1.0, 0.0])
    assert fused.values.tolist() == [-0.5]
    assert fused.contributions.tolist() == [[-0.5, 0.0]]


@pytest.mark.parametrize("policy", [Minimum(), Lexicographic()], ids=lambda policy: policy.name)
@pytest.mark.parametrize("weight", [2.0, 0.5, 1e-9])
def test_min_and_lexicographic_refuse_weights_other_than_0_and_1(policy, weight):
    with pytest.raises(ConfigError, match=rf"reward\.b\.weight: .*weight of {weight:g}"):
        policy.check(infos([1.0, weight]))


def test_lexicographic_gives_the_share_of_the_others_that_are_strictly_worse():
    # a decides; b only breaks the tie of rows 0 and 1; rows 2 and 3 are equal.
    rows = [[1.0, 0.1], [1.0, 0.2], [0.0, 0.9], [0.0, 0.9], [2.0, 0.0]]
    fused = fuse(Lexicographic(), rows, [1.0, 1.0])
    assert fused.values.tolist() == [0.5, 0.75, 0.0, 0.0, 1.0]
    # Without b rows 0 and 1 tie with two below; without a the order is 4 < 0 < 1 < 2 = 3.
    without_b = [0.5, 0.5, 0.0, 0.0, 1.0]
    without_a = [0.25, 0.5, 0.75, 0.75, 0.0]
    assert fused.contributions[:, 0].tolist() == (fused.values - without_a).tolist()
    assert fused.contributions[:, 1].tolist() == (fused.values - without_b).tolist()


def test_lexicographic_compares_within_a_group_only():
    fused = fuse(Lexicographic(), [[9.0], [1.0], [8.0], [2.0], [5.0]], [1.0], [7, 3, 7, 3, 1])
    assert fused.values.tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]


def test_lexicographic_compares_by_whole_tolerances():
    config = LexicographicConfig(tolerance={"a": 0.5})
    fused = fuse(Lexicographic(config), [[0.9, 0.1], [0.6, 0.2], [0.4, 0.9]], [1.0, 1.0])
    assert fused.values.tolist() == [0.5, 1.0, 0.0]
    everywhere = Lexicographic(LexicographicConfig(tolerance=1.0))
    assert fuse(everywhere, [[0.9, 0.1], [0.6, 0.2]], [1.0, 1.0]).values.tolist() == [0.0, 0.0]


def test_lexicographic_puts_a_row_below_all_where_a_mount_said_nothing_about_it():
    fused = fuse(Lexicographic(), [[NAN, 9.0], [-5.0, 0.0]], [1.0, 1.0])
    assert fused.values.tolist() == [0.0, 1.0]


def test_lexicographic_leaves_rows_without_any_score_out_of_the_group():
    fused = fuse(Lexicographic(), [[0.1], [NAN], [0.2], [NAN]], [1.0])
    assert fused.values.tolist() == [0.0, 0.0, 1.0, 0.0]


def test_lexicographic_refuses_a_tolerance_for_a_mount_that_is_not_there():
    policy = Lexicographic(LexicographicConfig(tolerance={"bb": 0.1}))
    with pytest.raises(ConfigError, match=r"'bb'.*did you mean 'b'"):
        policy.check(infos([1.0, 1.0]))
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        LexicographicConfig(tolerance=-0.1)


def constrained(**options):
    return Constrained(ConstrainedConfig(**{"bounds": {"b": 0.5}, **options}))


def test_constrained_is_the_weighted_sum_until_a_step_was_under_its_bound():
    fused = fuse(constrained(), [[1.0, 0.5], [-1.0, 0.25]], [2.0, 1.0])
    assert fused.values.tolist() == [2.5, -1.75]


def test_constrained_raises_the_weight_of_a_mount_by_rate_times_shortfall():
    policy = constrained(rate=0.5)
    policy.step_end({"a": -3.0, "b": 0.25})
    assert policy.multipliers == {"b": 0.125}
    policy.step_end({"a": -3.0, "b": 0.0})
    assert policy.multipliers == {"b": 0.375}
    fused = fuse(policy, [[1.0, 0.5], [1.0, NAN]], [2.0, 1.0])
    assert fused.values.tolist() == [2.6875, 2.0]
    assert fused.contributions.tolist() == [[2.0, 0.6875], [2.0, 0.0]]
    assert policy.metrics() == {"reward/b/multiplier": 0.375}


def test_constrained_lets_go_when_the_mean_is_over_its_bound_but_never_below_0():
    policy = constrained(rate=1.0)
    policy.step_end({"b": 0.25})
    policy.step_end({"b": 0.625})
    assert policy.multipliers == {"b": 0.125}
    policy.step_end({"b": 9.0})
    assert policy.multipliers == {"b": 0.0}


def test_constrained_stops_at_the_highest_multiplier():
    policy = constrained(rate=1.0, max_multiplier=0.75)
    for _ in range(9):
        policy.step_end({"b": 0.0})
    assert policy.multipliers == {"b": 0.75}


@pytest.mark.parametrize("means", [{}, {"a": 0.0}, {"b": NAN}], ids=str)
def test_constrained_leaves_a_multiplier_alone_that_the_step_says_nothing_about(means):
    policy = constrained(rate=1.0)
    policy.step_end({"b": 0.25})
    policy.step_end(means)
    assert policy.multipliers == {"b": 0.25}


def test_constrained_goes_on_from_a_checkpoint():
    policy, resumed = constrained(), constrained()
    for mean in (0.1, 0.4, 0.9, -1.0):
        policy.step_end({"b": mean})
    resumed.load_state(json.loads(json.dumps(policy.state())))
    assert resumed.multipliers == policy.multipliers
    assert policy.multipliers["b"] > 0.0


@pytest.mark.parametrize(
    "state",
    [{}, {"multipliers": {"c": 1.0}}, {"multipliers": {"b": -1.0}}, {"multipliers": {"b": "1"}}],
    ids=str,
)
def test_constrained_refuses_a_checkpoint_that_is_not_its_own(state):
    policy = constrained()
    with pytest.raises(ConfigError, match=r"fusion\.bounds"):
        policy.load_state(state)
    assert policy.multipliers == {"b": 0.0}


def test_constrained_refuses_a_bound_on_no_reward_or_on_one_that_is_only_observed():
    gate = MountInfo("b", NAN, "gate", (0.0, 1.0))
    with pytest.raises(ConfigError, match=r"fusion\.bounds\.b: .*'b'"):
        constrained().check([*infos([1.0]), gate])
    with pytest.raises(ConfigError, match=r"only observed.*0\.01"):
        constrained().check(infos([1.0, 0.0]))
    with pytest.raises(ValidationError):
        ConstrainedConfig(bounds={})
