"""The algebra of every fusion policy, and each beside a plain one written here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from verl_core.rewards.fusion.constrained import Constrained, ConstrainedConfig
from verl_core.rewards.fusion.lexicographic import Lexicographic, LexicographicConfig
from verl_core.rewards.fusion.minimum import Minimum
from verl_core.rewards.fusion.product import Product
from verl_core.rewards.fusion.weighted_mean import WeightedMean
from verl_core.rewards.fusion.weighted_sum import WeightedSum
from verl_reward_sdk.protocols import MountInfo

MULTIPLIER = 1.5
TOLERANCE = 0.25
NAMES = ("a", "b", "c")


def constrained():
    policy = Constrained(ConstrainedConfig(bounds={"a": 2.0}, rate=1.0))
    policy.step_end({"a": 2.0 - MULTIPLIER})
    return policy


MAKE = {
    "weighted_sum": WeightedSum,
    "weighted_mean": WeightedMean,
    "product": Product,
    "min": Minimum,
    "lexicographic": Lexicographic,
    "lexicographic by tolerance": lambda: Lexicographic(LexicographicConfig(tolerance=TOLERANCE)),
    "constrained": constrained,
}
SWITCHED = {"min", "lexicographic", "lexicographic by tolerance"}
every_policy = pytest.mark.parametrize("name", MAKE)


@dataclass
class Case:
    """A step: `scores` with NaN where a mount adds nothing."""

    scores: np.ndarray
    weights: np.ndarray
    groups: np.ndarray

    def fuse(self, name, scores=None, *, keep=None):
        """Fuse with the policy `name`; only the mounts in `keep`, if given."""
        scores = self.scores if scores is None else scores
        keep = range(len(self.weights)) if keep is None else keep
        scores, weights = scores[:, list(keep)], self.weights[list(keep)]
        policy = MAKE[name]()
        policy.check(
            [
                MountInfo(NAMES[mount], float(self.weights[mount]), "reward", (0.0, 1.0))
                for mount in keep
            ]
        )
        return policy.fuse(scores, ~np.isnan(scores), weights, self.groups)


@st.composite
def cases(draw, name, absent=True, min_rows=1):
    n = draw(st.integers(min_rows, 8))
    # Of few values, so that ties are common; 0 and 1 are among them.
    score = st.one_of(st.integers(0, 8).map(lambda k: k / 8), st.floats(0.0, 1.0))
    cell = st.one_of(score, score, score, st.just(math.nan)) if absent else score
    scores = draw(st.lists(st.lists(cell, min_size=3, max_size=3), min_size=n, max_size=n))
    # Subnormal weights, on which the plain policies here round, have a test of their own.
    some = st.one_of(st.just(0.0), st.floats(1e-9, 4.0))
    weight = st.sampled_from([0.0, 1.0]) if name in SWITCHED else some
    weights = draw(st.lists(weight, min_size=3, max_size=3))
    if name == "constrained":
        weights[0] = max(weights[0], 0.125)  # the mount with a bound
    assume(max(weights) > 0.0)
    groups = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    return Case(np.array(scores), np.array(weights), np.array(groups))


def plain(name, case):
    """The fused rewards row by row, in plain Python: what each policy says it does."""
    scores, weights = case.scores.tolist(), case.weights.tolist()
    out = []
    for i, row in enumerate(scores):
        there = [(s, w) for s, w in zip(row, weights, strict=True) if not math.isnan(s)]
        if name == "weighted_sum":
            value = sum(w * s for s, w in there)
        elif name == "weighted_mean":
            value = sum(w * s for s, w in there) / sum(weights)
        elif name == "constrained":
            value = sum(w * s for s, w in there)
            value += 0.0 if math.isnan(row[0]) else MULTIPLIER * row[0]
        elif name == "product":
            there = [(s, w) for s, w in there if w > 0]
            value = math.prod(s ** (w / sum(weights)) for s, w in there) if there else 0.0
        elif name == "min":
            value = min((s for s, w in there if w > 0), default=0.0)
        else:
            value = plain_share(name, case, i)
        out.append(value)
    return out


def plain_share(name, case, i):
    step = TOLERANCE if "tolerance" in name else 0.0

    def key(row):
        kept = [s for s, w in zip(row, case.weights, strict=True) if w > 0]
        if all(math.isnan(s) for s in kept):
            return None
        return [-math.inf if math.isnan(s) else math.floor(s / step) if step else s for s in kept]

    mine = key(case.scores[i])
    others = [key(case.scores[j]) for j in np.flatnonzero(case.groups == case.groups[i]) if j != i]
    others = [other for other in others if other is not None]
    if mine is None or not others:
        return 0.0
    return sum(other < mine for other in others) / len(others)


@every_policy
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_policy_is_the_plain_one(name, data):
    case = data.draw(cases(name))
    np.testing.assert_allclose(case.fuse(name).values, plain(name, case), rtol=1e-12, atol=1e-12)


def test_a_factor_of_zero_makes_a_product_zero_however_small_its_weight():
    scores = np.array([[0.125, 0.0], [0.125, 0.5]])
    fused = Product().fuse(
        scores, np.ones((2, 2), dtype=bool), np.array([1.0, 5e-324]), np.array([0, 0])
    )
    np.testing.assert_allclose(fused.values, [0.0, 0.125])
    np.testing.assert_allclose(fused.contributions, [[0.0, -0.125], [0.125 - 0.5, 0.0]])


@every_policy
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_rows_may_come_in_any_order(name, data):
    case = data.draw(cases(name))
    order = data.draw(st.permutations(range(len(case.groups))))
    moved = Case(case.scores[order], case.weights, case.groups[order])
    one, other = case.fuse(name), moved.fuse(name)
    assert other.values.tolist() == one.values[order].tolist()  # to the last bit
    assert other.contributions.tolist() == one.contributions[order].tolist()


@pytest.mark.parametrize("name", ["weighted_sum", "weighted_mean", "product", "min"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_mounts_may_come_in_any_order(name, data):
    case = data.draw(cases(name))
    order = data.draw(st.permutations(range(3)))
    moved = Case(case.scores[:, order], case.weights[order], case.groups)
    one, other = case.fuse(name), moved.fuse(name)
    np.testing.assert_allclose(other.values, one.values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        other.contributions, one.contributions[:, order], rtol=1e-9, atol=1e-12
    )


@every_policy
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_contributions_add_up_or_are_what_the_mount_makes_of_the_whole(name, data):
    case = data.draw(cases(name))
    fused = case.fuse(name)
    if MAKE[name]().additive:
        np.testing.assert_allclose(fused.contributions.sum(axis=1), fused.values, atol=1e-12)
        return
    for mount in range(3):
        rest = [other for other in range(3) if other != mount]
        if not case.weights[mount]:
            assert not fused.contributions[:, mount].any()
        elif case.weights[rest].any():
            without = case.fuse(name, keep=rest).values
            here = ~np.isnan(case.scores[:, mount])
            # In `lexicographic` a row with nothing left is outside the group of the shorter order.
            np.testing.assert_allclose(
                fused.contributions[here, mount],
                shared_groups(name, case, mount, fused.values, without)[here],
                rtol=1e-9,
                atol=1e-12,
            )


def shared_groups(name, case, mount, values, without):
    """values - without; where the shorter order has other rows in a group, computed in full."""
    if not name.startswith("lexicographic"):
        return values - without
    kept = [m for m in range(3) if m != mount and case.weights[m]]
    there = ~np.isnan(case.scores[:, np.flatnonzero(case.weights)]).all(axis=1)
    low = case.scores.copy()
    # A row that stays in the group has the lowest place in what is left, as in the longer order.
    low[np.ix_(there, kept)] = np.nan_to_num(low[np.ix_(there, kept)], nan=-9.0)
    other = Case(low, case.weights, case.groups)
    return values - other.fuse(name, keep=[m for m in range(3) if m != mount]).values


@pytest.mark.parametrize("name", ["weighted_sum", "weighted_mean", "product"])
@given(data=st.data(), factor=st.floats(0.01, 100.0))
@settings(max_examples=40, deadline=None)
def test_scaling_every_weight_scales_a_sum_and_leaves_a_mean_alone(name, data, factor):
    case = data.draw(cases(name))
    other = Case(case.scores, case.weights * factor, case.groups)
    expected = case.fuse(name).values * (factor if name == "weighted_sum" else 1.0)
    np.testing.assert_allclose(other.fuse(name).values, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["weighted_sum", "weighted_mean", "product", "min", "constrained"])
@given(data=st.data(), factor=st.floats(0.01, 1.0))
@settings(max_examples=40, deadline=None)
def test_scaling_every_score_scales_the_reward(name, data, factor):
    case = data.draw(cases(name, absent=False))
    scaled = case.scores * factor
    assume(((scaled >= np.finfo(float).tiny) | (case.scores == 0.0)).all())  # else it is rounded
    one, other = case.fuse(name), case.fuse(name, scaled)
    np.testing.assert_allclose(other.values, one.values * factor, rtol=1e-9, atol=1e-12)


@every_policy
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_higher_score_never_lowers_a_reward(name, data):
    case = data.draw(cases(name))
    row = data.draw(st.integers(0, len(case.groups) - 1))
    mount = data.draw(st.integers(0, 2))
    assume(not math.isnan(case.scores[row, mount]))
    raised = case.scores.copy()
    raised[row, mount] += data.draw(st.floats(0.0, 1.0)) * (1.0 - raised[row, mount])
    assert case.fuse(name, raised).values[row] >= case.fuse(name).values[row] - 1e-12


def filled(scores, silent, groups):
    """`scores` of one mount with neutral fill-ins: the group's mean, else the step's."""
    out = scores.copy()
    for row in np.flatnonzero(silent):
        peers = scores[~silent & (groups == groups[row])]
        out[row] = (peers if len(peers) else scores[~silent]).mean()
    return out


@every_policy
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_an_abstention_never_pays(name, data):
    """No row gains by an abstention over any score at or above its group's mean."""
    case = data.draw(cases(name, absent=False, min_rows=2))
    n = len(case.groups)
    mount, row = data.draw(st.integers(0, 2)), data.draw(st.integers(0, n - 1))
    silent = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    silent[row] = True
    assume(not silent.all())
    quiet, spoken = case.scores.copy(), case.scores.copy()
    quiet[:, mount] = filled(case.scores[:, mount], silent, case.groups)
    mean = quiet[row, mount]
    spoken[row, mount] = mean + data.draw(st.sampled_from([0.0, 1e-3, 0.5, 1.0])) * (1.0 - mean)
    # Rounding may put a mean above all that it is of: then the score is below the true mean.
    peers = case.scores[~silent & (case.groups == case.groups[row]), mount]
    if len(peers):
        spoken[row, mount] = max(spoken[row, mount], np.nextafter(mean, 2.0) if mean < 1 else 1.0)
    silent[row] = False
    spoken[:, mount] = filled(spoken[:, mount], silent, case.groups)
    assert case.fuse(name, quiet).values[row] <= case.fuse(name, spoken).values[row] + 1e-12


def test_a_constrained_run_settles_where_the_bound_holds():
    """A policy that trades `a` against `b` by their weights, and a bound that its weights miss."""
    policy = Constrained(ConstrainedConfig(bounds={"b": 0.6}, rate=0.5))
    policy.check([MountInfo(n, 1.0, "reward", (0.0, 1.0)) for n in ("a", "b")])
    effort = 0.1  # of a unit of effort so much goes into b; a and b grow as its square root
    for _ in range(4000):
        a, b = math.sqrt(1 - effort), math.sqrt(effort)
        price = policy.multipliers["b"]
        # b weighs 0.2, and the slope of the Lagrangian in `effort` is what training follows.
        slope = (0.2 + price) / (2 * b) - 1.0 / (2 * a)
        effort = min(max(effort + 0.01 * slope, 1e-3), 1 - 1e-3)
        policy.step_end({"a": a, "b": math.sqrt(effort)})
    assert math.sqrt(effort) == pytest.approx(0.6, abs=1e-3)
    assert policy.multipliers["b"] == pytest.approx(0.6 / 0.8 - 0.2, abs=1e-2)
