"""The algebra of scoring, on any batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from verl_reward_sdk import RewardError

score = st.floats(-4.0, 4.0).map(lambda x: round(x, 3))
cell = st.one_of(score, score, score, st.none(), st.just("broke"))
word = st.sampled_from(["none", "none", "none", "penalty", "veto", "skip", None, "!down"])
weight = st.floats(0.0, 4.0)
penalty = st.floats(-4.0, -0.1)
REWARDS, GATES = ("a", "b", "c"), ("g", "h")


@st.composite
def runs(draw, cells=cell, words=word, min_rows=1):
    """Mounts and a batch for them."""
    n = draw(st.integers(min_rows, 8))
    rows = st.lists(cells, min_size=n, max_size=n)
    columns = {name: draw(rows) for name in REWARDS}
    columns |= {name: draw(st.lists(words, min_size=n, max_size=n)) for name in GATES}
    mounts = [
        {
            "type": name,
            "weight": draw(weight),
            "missing": draw(st.sampled_from(["neutral", "zero", "mask"])),
            "on_error": draw(st.sampled_from(["mask", "abstain", {"default": 0.5}])),
            "scale": draw(st.sampled_from([1.0, -0.5, 2.0])),
            "max_error_rate": 1.0,
        }
        for name in REWARDS
    ]
    assume(any(mount["weight"] > 0 for mount in mounts))
    mounts += [
        {
            "type": name,
            "role": "gate",
            "penalty": draw(penalty),
            "fail_open": draw(st.booleans()),
            "in_baseline": draw(st.booleans()),
        }
        for name in GATES
    ]
    groups = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    training = draw(st.booleans())
    return mounts, columns, groups, training


def score_run(kit, mounts, columns, groups, training, sample_ids=None):
    providers = [
        {
            **mount,
            "provider": (kit.gate_column if "penalty" in mount else kit.column)(mount["type"]),
        }
        for mount in mounts
    ]
    # Without a step nothing raises in evaluation; training rows may all be shut by the gates.
    batch = kit.batch(columns=columns, group_ids=groups, training=training, step=None)
    with kit.engine(*providers) as engine:
        try:
            return engine.score(batch)
        except RewardError:
            assume(False)


def same(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))


@given(runs())
@settings(max_examples=60, deadline=None)
def test_rows_may_come_in_any_order(kit, run):
    mounts, columns, groups, training = run
    table = score_run(kit, *run)
    order = np.random.default_rng(len(groups)).permutation(len(groups)).tolist()
    moved = {name: [cells[i] for i in order] for name, cells in columns.items()}
    other = score_run(kit, mounts, moved, [groups[i] for i in order], training)
    for place, row in enumerate(order):
        assert same(other.fused[place], table.fused[row])  # to the last bit
        assert other.mask_reason[place] == table.mask_reason[row]
        assert other.skip[place] == table.skip[row]


@given(runs(), st.permutations(range(5)))
@settings(max_examples=60, deadline=None)
def test_mounts_may_come_in_any_order(kit, run, order):
    mounts, columns, groups, training = run
    table = score_run(kit, *run)
    other = score_run(kit, [mounts[i] for i in order], columns, groups, training)
    np.testing.assert_allclose(other.fused, table.fused, rtol=1e-12, atol=1e-12)
    assert other.masked.tolist() == table.masked.tolist()
    assert other.gate_severity.tolist() == table.gate_severity.tolist()


@given(runs())
@settings(max_examples=100, deadline=None)
def test_contributions_add_up_and_dead_rows_never_carry_numbers(kit, run):
    table = score_run(kit, *run)
    dead = table.masked | table.blocked
    assert not (table.masked & table.blocked).any()
    assert np.isnan(table.fused).tolist() == dead.tolist()
    for row in range(len(table)):
        explained = table.explain(row)
        parts = [m["contribution"] for m in explained["mounts"].values()]
        if dead[row]:
            assert explained["reason"]
            assert parts == [None] * len(parts)
        else:
            total = sum(part for part in parts if part is not None)
            assert total == pytest.approx(explained["fused"], abs=1e-9)
    assert not (table.in_baseline & dead).any()
    for column in table.columns.values():
        assert np.isnan(column.scores).tolist() == (column.status != "ok").tolist()


@given(runs())
@settings(max_examples=100, deadline=None)
def test_a_gate_never_raises_a_reward(kit, run):
    mounts, columns, groups, training = run
    table = score_run(kit, *run)
    for name in GATES:
        fewer = [mount for mount in mounts if mount["type"] != name]
        without = score_run(kit, fewer, columns, groups, training)
        for row in range(len(table)):
            before, after = without.fused[row], table.fused[row]
            if not math.isnan(before) and not math.isnan(after):
                assert after <= before


@given(runs(), weight)
@settings(max_examples=60, deadline=None)
def test_scaling_every_weight_scales_every_ungated_reward(kit, run, factor):
    mounts, columns, groups, training = run
    assume(factor > 0.01)
    ungated = [mount for mount in mounts if "penalty" not in mount]
    table = score_run(kit, ungated, columns, groups, training)
    scaled = [{**mount, "weight": mount["weight"] * factor} for mount in ungated]
    other = score_run(kit, scaled, columns, groups, training)
    np.testing.assert_allclose(other.fused, table.fused * factor, rtol=1e-9, atol=1e-9)


@given(runs(cells=st.one_of(score, st.none()), words=st.just("none"), min_rows=2), st.data())
@settings(max_examples=150, deadline=None)
def test_an_abstention_never_pays(kit, run, data):
    """No row gains by an abstention over any score at or above its group's mean."""
    mounts, columns, groups, training = run
    mounts = [
        # scale > 0: with a negative one a higher raw score is the worse one.
        {**m, "missing": "neutral", "scale": 2.0} if "penalty" not in m else m
        for m in mounts
    ]
    name = data.draw(st.sampled_from(REWARDS))
    row = data.draw(st.integers(0, len(groups) - 1))
    scored = [v for i, v in enumerate(columns[name]) if i != row and v is not None]
    peers = [
        v
        for i, v in enumerate(columns[name])
        if i != row and v is not None and groups[i] == groups[row]
    ]
    assume(scored)
    mean = math.fsum(peers or scored) / len(peers or scored)
    columns = {**columns, name: list(columns[name])}
    columns[name][row] = None
    silent = score_run(kit, mounts, columns, groups, training).fused[row]
    columns[name][row] = mean + data.draw(st.floats(0.0, 2.0))
    spoken = score_run(kit, mounts, columns, groups, training).fused[row]
    if not math.isnan(silent):
        assert silent <= spoken + 1e-9


@given(
    st.lists(st.one_of(score, st.none()), min_size=2, max_size=6),
    st.lists(score, min_size=6, max_size=6),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_an_abstention_never_pays_by_what_depends_on_it(kit, formats, tones, data):
    """Not by a mount whose `when` names the silent one either."""
    n = len(formats)
    row = data.draw(st.integers(0, n - 1))
    peers = [v for i, v in enumerate(formats) if i != row and v is not None]
    assume(peers)
    mounts = [{"type": "a"}, {"type": "b", "when": "a >= 1"}]
    columns = {"a": list(formats), "b": tones[:n]}

    def fused(value):
        columns["a"][row] = value
        return score_run(kit, mounts, columns, [0] * n, True).fused[row]

    mean = math.fsum(peers) / len(peers)
    spoken = fused(mean + data.draw(st.floats(0.0, 3.0)))
    silent = fused(None)
    if not math.isnan(silent):
        assert silent <= spoken + 1e-9


@given(runs())
@settings(max_examples=60, deadline=None)
def test_metrics_and_explanations_are_always_finite(kit, run):
    table = score_run(kit, *run)
    assert all(math.isfinite(value) for value in table.metrics().values())
    for row in range(len(table)):
        for mount in table.explain(row)["mounts"].values():
            numbers = [v for v in mount.values() if isinstance(v, float)]
            assert all(math.isfinite(number) for number in numbers)
