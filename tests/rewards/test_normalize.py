"""Normalisation of a mount's scores: hand-checked cases, plain counterparts, and its algebra."""

from __future__ import annotations

import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from verl_core.rewards.group_statistics import EPSILON, Grouping
from verl_core.rewards.normalize import RunningNormalizer, normalize_batch, normalize_group
from verl_reward_sdk import ConfigError

NAN = math.nan
ROOT = math.sqrt(0.5)


def by_group(values, groups, live=None, neutral=None):
    n = len(values)
    return normalize_group(
        np.array(values, dtype=np.float64),
        Grouping(np.array(groups)),
        np.ones(n, dtype=bool) if live is None else np.array(live),
        np.zeros(n, dtype=bool) if neutral is None else np.array(neutral),
    )


def by_batch(values, live=None, groups=None, neutral=None):
    n = len(values)
    return normalize_batch(
        np.array(values, dtype=np.float64),
        Grouping(np.zeros(n, dtype=np.int64) if groups is None else np.array(groups)),
        np.ones(n, dtype=bool) if live is None else np.array(live),
        np.zeros(n, dtype=bool) if neutral is None else np.array(neutral),
    )


def by_past(running, values):
    n = len(values)
    nobody = np.zeros(n, dtype=bool)
    return running.normalize(np.array(values), Grouping(np.arange(n)), ~nobody, nobody)


def plain(values, live, neutral):
    """One group or one step in plain Python; the mean of `live` rows that are no fill-ins."""
    counted = [i for i in range(len(values)) if live[i] and not math.isnan(values[i])]
    scored = [values[i] for i in counted if not neutral[i]]
    if len(counted) < 2 or not scored:
        return [NAN if math.isnan(v) else 0.0 for v in values]
    mean = statistics.fmean(scored)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in scored) / (len(counted) - 1))
    if std < EPSILON:
        return [NAN if math.isnan(v) else 0.0 for v in values]
    return [
        NAN if math.isnan(v) else 0.0 if fill else (v - mean) / std
        for v, fill in zip(values, neutral, strict=True)
    ]


def test_a_group_gets_mean_0_and_standard_deviation_1():
    got = by_group([1.0, 5.0, 3.0, 7.0, 2.0], [0, 1, 0, 1, 0])
    assert got == pytest.approx([-1.0, -ROOT, 1.0, ROOT, 0.0], abs=1e-15)


def test_a_neutral_row_is_exactly_0_and_counts_as_a_row_on_the_mean():
    got = by_group([0.1, 0.3, 0.2], [0, 0, 0], neutral=[False, False, True])
    # mean 0.2, squares 0.01 + 0.01 + 0, over three rows less one
    assert got == pytest.approx([-1.0, 1.0, 0.0], abs=1e-12)
    assert got[2] == 0.0


def test_a_row_that_is_not_live_is_compared_and_changes_nothing():
    got = by_group([1.0, 3.0, 99.0], [0, 0, 0], live=[True, True, False])
    assert got == pytest.approx([-ROOT, ROOT, 97.0 * ROOT], abs=1e-12)


def test_a_group_without_two_live_rows_is_0():
    got = by_group([4.0, 1.0, 2.0, NAN, 9.0], [0, 1, 1, 2, 2], live=[True, True, False, True, True])
    assert got[[0, 1, 2, 4]].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert math.isnan(got[3])


def test_a_group_of_fill_ins_is_0():
    assert by_group([0.4, 0.4], [0, 0], neutral=[True, True]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [0.1, 1e12 + 0.3, -7e99])
@pytest.mark.parametrize("size", [2, 3, 7, 100])
def test_equal_scores_are_exactly_0_whatever_their_size(value, size):
    assert not by_group([value] * size, [0] * size).any()
    assert not by_batch([value] * size).any()


def test_a_spread_below_epsilon_gives_0():
    assert not by_group([1.0, 1.0 + EPSILON], [0, 0]).any()
    assert by_group([1.0, 1.0 + 2 * EPSILON], [0, 0]).all()


def test_a_batch_is_normalised_over_all_groups_and_only_by_live_rows():
    got = by_batch([1.0, 2.0, 3.0, NAN, 50.0], live=[True, True, True, True, False])
    assert got[:3] == pytest.approx([-1.0, 0.0, 1.0], abs=1e-15)
    assert math.isnan(got[3])
    assert got[4] == pytest.approx(48.0)
    assert by_batch([5.0]).tolist() == [0.0]
    assert by_batch([]).tolist() == []


def test_over_a_batch_a_fill_in_counts_unless_its_whole_group_is_silent():
    got = by_batch(
        [1.0, 3.0, 2.0, 2.0, 2.0],
        groups=[0, 0, 0, 1, 1],
        neutral=[False, False, True, True, True],
    )
    # mean 2, squares 1 + 1 + 0, over three rows less one
    assert got.tolist() == [-1.0, 1.0, 0.0, 0.0, 0.0]
    got = by_batch([1.0, 1.0, 4.0, 2.0], groups=[0, 0, 2, 1], neutral=[False, True, False, True])
    assert got == pytest.approx(np.array([-1.0, -1.0, 2.0, 0.0]) / math.sqrt(3.0))


def test_running_begins_with_the_step_itself_and_then_knows_the_past():
    running = RunningNormalizer()
    first = np.array([0.0, 2.0])
    assert by_past(running, first) == pytest.approx([-ROOT, ROOT], abs=1e-15)
    running.update(first)
    assert by_past(running, [5.0, NAN])[0] == pytest.approx(4.0 * ROOT)
    running.update(np.array([4.0, 6.0]))
    # mean 3, squares 9 + 1 + 1 + 9 over 3
    assert (running.count, running.mean, running.squares) == (4, 3.0, 20.0)
    assert by_past(running, [3.0, 0.0])[0] == 0.0


def test_running_changes_in_update_only():
    running = RunningNormalizer()
    running.update(np.array([1.0, 4.0]))
    before = running.state()
    by_past(running, [100.0, 7.0])
    running.update(np.array([]))
    assert running.state() == before


def test_running_statistics_survive_a_checkpoint_to_the_last_bit():
    rng = np.random.default_rng(5)
    running, resumed = RunningNormalizer(), RunningNormalizer()
    running.update(rng.normal(size=100))
    resumed.load_state(json.loads(json.dumps(running.state())))
    later = rng.normal(size=33)
    running.update(later)
    resumed.update(later)
    assert resumed.state() == running.state()


@pytest.mark.parametrize(
    "state",
    [{}, {"count": 2, "mean": NAN, "squares": 1.0}, {"count": 2, "mean": 0.0, "squares": -1.0}],
    ids=str,
)
def test_running_refuses_a_checkpoint_without_statistics(state):
    with pytest.raises(ConfigError, match="running statistics"):
        RunningNormalizer().load_state(state)


def test_running_that_saw_equal_scores_only_gives_0():
    running = RunningNormalizer()
    running.update(np.full(50, 0.1))
    running.update(np.full(7, 0.1))
    assert not by_past(running, [0.3, 0.1]).any()


score = st.one_of(st.integers(-3, 3).map(float), st.floats(-5.0, 5.0))


@st.composite
def columns(draw, min_rows=1):
    n = draw(st.integers(min_rows, 12))

    def rows(of):
        return np.array(draw(st.lists(of, min_size=n, max_size=n)))

    values = rows(st.one_of(score, score, score, st.just(NAN)))
    neutral = rows(st.booleans()) & ~np.isnan(values)
    return values, rows(st.integers(0, 3)), rows(st.sampled_from([True, True, False])), neutral


@given(columns())
@settings(max_examples=150, deadline=None)
def test_groups_and_batch_are_the_plain_ones(column):
    values, groups, live, neutral = column
    got = by_group(values, groups, live, neutral)
    for group in set(groups.tolist()):
        rows = groups == group
        expected = plain(values[rows], live[rows], neutral[rows])
        np.testing.assert_allclose(got[rows], expected, rtol=1e-7, atol=1e-9)
    seen = set(groups[~np.isnan(values) & ~neutral].tolist())
    lost = np.array([n and g not in seen for n, g in zip(neutral, groups.tolist(), strict=True)])
    expected = np.array(plain(values, live & ~lost, np.zeros(len(values), dtype=bool)))
    expected[lost] = 0.0
    got = by_batch(values, live, groups, neutral)
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9)


@given(columns(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_rows_may_come_in_any_order_to_the_last_bit(column, random):
    values, groups, live, neutral = column
    order = list(range(len(values)))
    random.shuffle(order)
    one = by_group(values, groups, live, neutral)
    other = by_group(values[order], groups[order], live[order], neutral[order])
    np.testing.assert_array_equal(other, one[order])
    one = by_batch(values, live, groups, neutral)
    other = by_batch(values[order], live[order], groups[order], neutral[order])
    np.testing.assert_array_equal(other, one[order])
    runs = RunningNormalizer(), RunningNormalizer()
    runs[0].update(values[~np.isnan(values)])
    runs[1].update(values[order][~np.isnan(values[order])])
    assert runs[0].state() == runs[1].state()


def test_large_groups_keep_their_bits_in_any_order_and_at_any_place():
    rng = np.random.default_rng(1)
    sizes = rng.choice([1, 2, 7, 8, 9, 33, 300], size=80)
    groups = np.repeat(np.arange(80), sizes)
    values = rng.normal(size=len(groups)) * 10.0 ** rng.integers(-3, 9, size=len(groups))
    order, names = rng.permutation(len(groups)), rng.permutation(80)
    one, other = by_group(values, groups), by_group(values[order], names[groups][order])
    assert other.tolist() == one[order].tolist()


@given(columns(min_rows=2), st.floats(0.1, 50.0), st.floats(-10.0, 10.0))
@settings(max_examples=100, deadline=None)
def test_scale_and_shift_of_the_scores_make_no_difference(column, factor, shift):
    values, groups, live, neutral = column
    # Closer ones come to lie on either side of `EPSILON`, or of each other's rounding.
    values = np.round(values, 2)
    one = by_group(values, groups, live, neutral)
    other = by_group(values * factor + shift, groups, live, neutral)
    np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


@given(st.lists(st.lists(score, max_size=9), max_size=6))
@settings(max_examples=100, deadline=None)
def test_running_knows_what_one_look_at_all_rows_would_know(steps):
    running = RunningNormalizer()
    for step in steps:
        running.update(np.array(step, dtype=np.float64))
    seen = [value for step in steps for value in step]
    assert running.count == len(seen)
    if len(seen) > 1:
        assert running.mean == pytest.approx(statistics.fmean(seen), abs=1e-9)
        variance = running.squares / (len(seen) - 1)
        assert variance == pytest.approx(statistics.variance(seen), rel=1e-9, abs=1e-9)


def with_fill_ins(values, silent, groups):
    out = values.copy()
    for row in np.flatnonzero(silent):
        peers = values[~silent & (groups == groups[row])]
        out[row] = (peers if len(peers) else values[~silent]).mean()
    return out


@pytest.mark.parametrize("way", ["group", "batch", "running"])
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_an_abstention_never_pays(way, data):
    """Nor does silence of the others in the group change that."""
    n = data.draw(st.integers(2, 10))
    values = np.array(data.draw(st.lists(score, min_size=n, max_size=n)))
    groups = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    silent = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    row = data.draw(st.integers(0, n - 1))
    silent[row] = True
    assume(not silent.all())
    # Over a batch a row of a silent group is 0: more than a low score, and not above a mean of it.
    assume(way != "batch" or (~silent & (groups == groups[row])).any())
    running = RunningNormalizer()
    running.update(np.array([-1.0, 0.5, 2.0]))
    live = np.ones(n, dtype=bool)

    def normalised(column, fills):
        if way == "group":
            return normalize_group(column, Grouping(groups), live, fills)[row]
        if way == "batch":
            return normalize_batch(column, Grouping(groups), live, fills)[row]
        return running.normalize(column, Grouping(groups), live, fills)[row]

    quiet = with_fill_ins(values, silent, groups)
    spoken = values.copy()
    spoken[row] = quiet[row] + data.draw(st.sampled_from([1e-9, 1e-3, 0.5, 3.0, 40.0]))
    fills = silent.copy()
    fills[row] = False
    spoken = with_fill_ins(spoken, fills, groups)
    assert normalised(quiet, silent) <= normalised(spoken, fills) + 1e-6
