"""GDPO: hand-checked cases, a plain counterpart, the peers' formula, and its algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from verl_core.rewards.group_statistics import Grouping
from verl_core.trainer.advantage.gdpo import gdpo_advantages, summed
from verl_core.trainer.advantage.grpo import group_advantages

NAN = math.nan


def gdpo(scores, groups, weights=None, live=None, in_baseline=None, **more):
    """Lists in, a `GroupAdvantage` out; everything is live and of weight 1 by default."""
    table = torch.tensor(np.array(scores, dtype=np.float64))
    n, mounts = table.shape
    return gdpo_advantages(
        table,
        torch.tensor(np.ones(mounts) if weights is None else np.array(weights, dtype=np.float64)),
        torch.tensor(np.array(groups)),
        torch.tensor([True] * n if live is None else np.array(live)),
        torch.tensor([True] * n if in_baseline is None else np.array(in_baseline)),
        **{key: torch.tensor(np.array(value)) for key, value in more.items()},
    )


def plain(scores, groups, weights, live, in_baseline, neutral, penalties):
    """The same in plain Python, one number after the other."""
    n = len(groups)
    columns = [
        (weight, [row[m] for row in scores], [row[m] for row in neutral])
        for m, weight in enumerate(weights)
        if weight > 0
    ]
    columns += [(1.0, [row[g] for row in penalties], [False] * n) for g in range(len(penalties[0]))]
    base = [a and b for a, b in zip(live, in_baseline, strict=True)]
    total = [0.0] * n
    kept = []
    for group in sorted(set(groups)):
        rows = [i for i in range(n) if groups[i] == group]
        if sum(base[i] for i in rows) < 2:
            continue
        kept += [i for i in rows if base[i]]
        for weight, values, fills in columns:
            counted = [i for i in rows if base[i] and not math.isnan(values[i])]
            scored = [values[i] for i in counted if not fills[i]]
            if len(counted) < 2 or not scored:
                continue
            mean = math.fsum(scored) / len(scored)
            std = math.sqrt(math.fsum((v - mean) ** 2 for v in scored) / (len(counted) - 1))
            if std < 1e-6:
                continue
            for i in rows:
                if live[i] and not math.isnan(values[i]) and not fills[i]:
                    total[i] += weight * (values[i] - mean) / std
    if len(kept) < 2:
        return [0.0] * n
    mean = math.fsum(total[i] for i in kept) / len(kept)
    std = math.sqrt(math.fsum((total[i] - mean) ** 2 for i in kept) / (len(kept) - 1))
    return [a / std if std > 1e-6 else 0.0 for a in total]


def test_two_rewards_of_one_group_are_normalised_summed_and_whitened():
    # (1, 0, 1, 0) -> ±0.866; (-120, -100, -60, -80) -> -1.162, -0.387, 1.162, 0.387
    result = gdpo([[1.0, -120.0], [0.0, -100.0], [1.0, -60.0], [0.0, -80.0]], [0, 0, 0, 0])
    correct = math.sqrt(3.0) / 2.0
    unit = 10.0 / math.sqrt(2000.0 / 3.0)
    summed = [correct - 3 * unit, -correct - unit, correct + 3 * unit, -correct + unit]
    spread = math.sqrt(sum(a * a for a in summed) / 3.0)
    assert result.values.tolist() == pytest.approx([a / spread for a in summed], abs=1e-14)
    assert result.values.dtype == torch.float64
    assert result.signal.all()


def test_one_reward_in_one_group_is_grpo():
    scores = [0.5, 2.0, -1.0, 0.25]
    result = gdpo([[s] for s in scores], [0] * 4)
    whole = torch.ones(4, dtype=torch.bool)
    grpo = group_advantages(torch.tensor(scores).double(), torch.zeros(4).long(), whole, whole)
    assert torch.allclose(result.values, grpo.values, atol=1e-5)


def test_rewards_of_another_size_weigh_the_same():
    small = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    large = [[a, 1e6 * b - 5.0] for a, b in small]
    assert torch.allclose(gdpo(small, [0] * 4).values, gdpo(large, [0] * 4).values, atol=1e-9)


def test_rewards_that_a_sum_cannot_tell_apart_get_advantages_of_their_own():
    """The paper's case: (0, 2) and (0, 1) collapse when rewards are summed before."""
    scores, groups = [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]], [0, 0, 1, 1]
    values = gdpo(scores, groups).values
    assert values[1] == pytest.approx(2 * float(values[3]))
    sums = torch.tensor([sum(row) for row in scores]).double()
    whole = torch.ones(4, dtype=torch.bool)
    grpo = group_advantages(sums, torch.tensor(groups), whole, whole).values
    assert grpo[1] == pytest.approx(float(grpo[3]), rel=1e-4)


def test_a_masked_row_enters_nothing_and_gets_nothing():
    with_mask = gdpo([[1.0], [2.0], [900.0]], [0, 0, 0], live=[True, True, False])
    assert with_mask.values.tolist() == [*gdpo([[1.0], [2.0]], [0, 0]).values.tolist(), 0.0]
    assert with_mask.signal.tolist() == [True, True, False]
    for poison in (NAN, math.inf):
        other = gdpo([[1.0], [2.0], [poison]], [0, 0, 0], live=[True, True, False])
        assert other.values.tolist() == with_mask.values.tolist()


def test_a_skipped_row_is_compared_with_its_group_but_is_not_in_its_baseline():
    result = gdpo([[1.0], [2.0], [-5.0]], [0, 0, 0], in_baseline=[True, True, False])
    assert torch.equal(result.values[:2], gdpo([[1.0], [2.0]], [0, 0]).values)
    assert result.values[2] == pytest.approx((-5.0 - 1.5) / math.sqrt(0.5))


def test_a_mount_that_does_not_apply_adds_0():
    scores = [[1.0, NAN], [0.0, NAN], [1.0, 4.0], [0.0, 2.0]]
    result = gdpo(scores, [0, 0, 1, 1])
    assert result.values[2] == pytest.approx(2 * float(result.values[0]))
    # Not for all rows of the group: those that it does apply to are compared with each other.
    one = gdpo([[1.0, NAN], [0.0, 3.0], [0.5, 5.0]], [0, 0, 0])
    assert one.values[2] == pytest.approx(-one.values[1] * (0.5**0.5) / (1 + 0.5**0.5))


def test_a_neutral_fill_in_adds_exactly_0():
    scores = [[0.3, 0.1], [0.3, 0.2], [0.3, 0.15]]
    neutral = [[False, False], [False, False], [False, True]]
    result = gdpo(scores, [0, 0, 0], neutral=neutral)
    assert result.values.tolist() == pytest.approx([-1.0, 1.0, 0.0])
    assert result.values[2] == 0.0


def test_a_mount_of_weight_0_is_left_out_and_weights_of_any_size_will_do():
    scores = [[1.0, 5.0], [0.0, 7.0], [0.5, 6.5]]
    alone = gdpo([row[:1] for row in scores], [0, 0, 0])
    assert torch.equal(gdpo(scores, [0, 0, 0], [1.0, 0.0]).values, alone.values)
    assert torch.allclose(gdpo(scores, [0, 0, 0], [1e-12, 0.0]).values, alone.values)
    nothing = gdpo(scores, [0, 0, 0], [0.0, 0.0])
    assert nothing.values.tolist() == [0.0, 0.0, 0.0]
    assert (nothing.dropped, nothing.flat) == (0, 1)


def test_a_gate_is_one_more_reward_of_weight_1():
    scores = [[1.0], [0.0], [0.5], [0.5]]
    spoke = [[-2.0], [0.0], [0.0], [0.0]]
    gated = gdpo(scores, [0] * 4, [3.0], penalties=spoke)
    column = gdpo([[*a, *b] for a, b in zip(scores, spoke, strict=True)], [0] * 4, [3.0, 1.0])
    assert torch.equal(gated.values, column.values)
    assert gated.values[0] < gdpo(scores, [0] * 4, [3.0]).values[0]


def test_gates_that_stay_silent_change_nothing():
    scores = [[1.0], [0.0], [0.25]]
    silent = gdpo(scores, [0] * 3, penalties=np.zeros((3, 2)))
    assert torch.equal(silent.values, gdpo(scores, [0] * 3).values)


def test_groups_with_fewer_than_two_live_rows_are_dropped_and_leave_the_others_alone():
    result = gdpo(
        [[1.0], [2.0], [3.0], [4.0], [6.0]],
        [0, 0, 1, 2, 2],
        live=[True, False, True, True, True],
    )
    assert result.values[:3].tolist() == [0.0, 0.0, 0.0]
    assert result.dropped == 2
    assert result.signal.tolist() == [False, False, False, True, True]
    assert torch.equal(result.values[3:], gdpo([[4.0], [6.0]], [0, 0]).values)


def test_a_group_without_signal_is_exactly_0_and_counted():
    result = gdpo([[0.1, 0.7], [0.1, 0.7], [0.1, 0.7], [1.0, 0.5], [0.3, 0.2]], [0, 0, 0, 1, 1])
    assert result.values[:3].tolist() == [0.0, 0.0, 0.0]
    assert (result.flat, result.dropped) == (1, 0)
    assert result.signal.tolist() == [False, False, False, True, True]


def test_no_rows_give_no_advantages():
    result = gdpo(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
    assert result.values.shape == (0,)
    assert (result.dropped, result.flat) == (0, 0)


def test_it_is_the_formula_of_the_peers_where_all_rows_are_live_and_scored():
    """TRL's ``normalize_then_sum`` and verl's ``gdpo`` but for the constant they add to a std."""
    rng = np.random.default_rng(3)
    scores = torch.tensor(rng.normal(size=(6 * 4, 3)) * [1.0, 30.0, 0.2])
    weights = torch.tensor([1.0, 0.5, 2.0]).double()
    grouped = scores.view(6, 4, 3)
    each = (grouped - grouped.mean(dim=1, keepdim=True)) / grouped.std(dim=1, keepdim=True)
    summed = (each.view(-1, 3) * weights).sum(dim=1)
    expected = (summed - summed.mean()) / summed.std()
    got = gdpo(scores.numpy(), np.repeat(np.arange(6), 4), weights.numpy())
    assert torch.allclose(got.values, expected, atol=1e-12)


score = st.one_of(st.integers(-3, 3).map(float), st.floats(-5.0, 5.0).map(lambda x: round(x, 3)))


@st.composite
def steps(draw):
    n = draw(st.integers(1, 12))

    def table(of, width):
        return draw(st.lists(st.lists(of, min_size=width, max_size=width), min_size=n, max_size=n))

    def column(of):
        return draw(st.lists(of, min_size=n, max_size=n))

    often = st.sampled_from([True, True, True, False])
    scores = table(st.one_of(score, score, score, st.just(NAN)), 3)
    fills = table(st.sampled_from([True, False, False]), 3)
    neutral = [
        [fill and not math.isnan(s) for fill, s in zip(*rows, strict=True)]
        for rows in zip(fills, scores, strict=True)
    ]
    return {
        "scores": scores,
        "groups": column(st.integers(0, 2)),
        "weights": draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=3, max_size=3)),
        "live": column(often),
        "in_baseline": column(often),
        "neutral": neutral,
        "penalties": table(st.sampled_from([0.0, 0.0, -1.0]), 2),
    }


@given(steps())
@settings(max_examples=100, deadline=None)
def test_it_is_the_plain_one(step):
    expected = plain(**step)
    # Where parts cancel to nothing the two differ by what rounding left over.
    assume(max(map(abs, expected)) < 1e6)
    np.testing.assert_allclose(gdpo(**step).values.numpy(), expected, rtol=1e-7, atol=1e-7)


@given(steps())
@settings(max_examples=60, deadline=None)
def test_advantages_are_finite_white_and_0_where_nothing_is_live(step):
    result = gdpo(**step)
    values = result.values.numpy()
    assert np.isfinite(values).all()
    live = np.array(step["live"])
    assert not values[~live].any()
    assert not result.signal.numpy()[~live].any()
    base = live & np.array(step["in_baseline"])
    groups = np.array(step["groups"])
    for group in set(step["groups"]):
        assert values[base & (groups == group)].sum() == pytest.approx(0.0, abs=1e-9)
    kept = base & np.isin(groups, [g for g in set(groups.tolist()) if base[groups == g].sum() > 1])
    if values[kept].any():
        assert values[kept].std(ddof=1) == pytest.approx(1.0)


@given(steps(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_rows_may_come_in_any_order_to_the_last_bit(step, random):
    order = list(range(len(step["groups"])))
    random.shuffle(order)
    moved = {
        key: value if key == "weights" else [value[i] for i in order] for key, value in step.items()
    }
    one, other = gdpo(**step), gdpo(**moved)
    assert other.values.tolist() == one.values[order].tolist()
    assert other.signal.tolist() == one.signal[order].tolist()
    assert (other.dropped, other.flat) == (one.dropped, one.flat)


@given(steps(), st.permutations(range(3)))
@settings(max_examples=60, deadline=None)
def test_mounts_may_come_in_any_order(step, order):
    moved = dict(step)
    for key in ("scores", "neutral"):
        moved[key] = [[row[m] for m in order] for row in step[key]]
    moved["weights"] = [step["weights"][m] for m in order]
    np.testing.assert_allclose(
        gdpo(**moved).values.numpy(), gdpo(**step).values.numpy(), rtol=1e-7, atol=1e-7
    )


@given(steps(), st.floats(0.01, 100.0))
@settings(max_examples=60, deadline=None)
def test_scaling_every_weight_makes_no_difference(step, factor):
    plain_step = {**step, "penalties": np.zeros((len(step["groups"]), 1))}
    scaled = {**plain_step, "weights": [w * factor for w in step["weights"]]}
    np.testing.assert_allclose(
        gdpo(**scaled).values.numpy(), gdpo(**plain_step).values.numpy(), rtol=1e-7, atol=1e-7
    )


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_an_abstention_never_pays(data):
    """No row gains by an abstention over a score at its group's mean, nor over a higher one.

    In what is whitened afterwards, that is: whitening a row also depends on what others gain.
    """
    n = data.draw(st.integers(2, 10))
    groups = np.array(data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
    scores = np.array(
        data.draw(st.lists(st.lists(score, min_size=2, max_size=2), min_size=n, max_size=n))
    )
    silent = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    row = data.draw(st.integers(0, n - 1))
    silent[row] = True
    peers = ~silent & (groups == groups[row])
    assume(peers.any())

    weights = data.draw(st.lists(st.sampled_from([0.1, 1.0, 3.0]), min_size=2, max_size=2))

    def reward(value):
        table, fills = scores.copy(), np.zeros((n, 2), dtype=bool)
        fills[:, 1] = silent
        if value is not None:
            table[row, 1] = value
            fills[row, 1] = False
        everybody, no_gates = np.ones(n, dtype=bool), np.zeros((n, 0))
        total, _ = summed(table, weights, Grouping(groups), everybody, fills, no_gates)
        return float(total[row])

    mean = scores[peers, 1].mean()
    above = mean + data.draw(st.sampled_from([1e-9, 0.01, 1.0, 30.0]))
    assert reward(None) <= reward(above) + 1e-9


def test_a_score_that_may_only_lower_its_row_lifts_it_in_no_group():
    """Both highest scores of their groups are unsure: the one above the mean counts as on it."""
    table = [[-1.0], [0.0], [-0.5], [3.0]]
    unsure = [[False], [True], [False], [False]]
    held = gdpo(table, [0, 0, 0, 1], unsure=unsure)
    free = gdpo(table, [0, 0, 0, 1])
    assert free.values[1] > 0.0
    assert held.values[1] == 0.0
    assert held.values[0] < 0.0
