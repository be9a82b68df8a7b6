"""Under every policy, and every `normalize:`, no row gains by an abstention over any score at or
above its group's mean."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.rewards.fusion import POLICIES

NAMES = ("a", "b")
OPTIONS = {
    "constrained": {"bounds": {"a": 0.9}, "rate": 2.0},
    "lexicographic": {"tolerance": {"b": 0.25}},
}
#: Of few values, so that ties are common.
score = st.one_of(st.integers(0, 4).map(lambda k: k / 4), st.floats(0.0, 1.0))


@st.composite
def steps(draw):
    """Two columns of scores, groups, the mount and the row that will abstain, and what the row says
    instead: at or above the mean of the others in its group."""
    n = draw(st.integers(2, 7))
    columns = {name: draw(st.lists(score, min_size=n, max_size=n)) for name in NAMES}
    groups = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    name, row = draw(st.sampled_from(NAMES)), draw(st.integers(0, n - 1))
    others = [i for i in range(n) if i != row]
    peers = [i for i in others if groups[i] == groups[row]] or others
    mean = math.fsum(columns[name][i] for i in peers) / len(peers)
    spoken = min(1.0, mean + draw(st.sampled_from([0.0, 0.01, 0.3, 1.0])))
    return columns, groups, name, row, max(spoken, mean)


def mounts(kit, **keys):
    made = []
    for name in NAMES:
        column = type("Unit", (kit.column,), {"score_range": (0.0, 1.0)})
        made.append({"type": name, "provider": column(name), **keys})
    return made


def compare(kit, engine, step):
    """The row's fused reward where it is silent, and where it speaks."""
    columns, groups, name, row, spoken = step

    def fused(value):
        cells = {**columns, name: [*columns[name][:row], value, *columns[name][row + 1 :]]}
        return engine.score(kit.batch(columns=cells, group_ids=groups, step=9)).fused[row]

    return fused(None), fused(spoken)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_abstention_never_pays_under_any_policy(kit, policy):
    with kit.engine(*mounts(kit), policy=policy, fusion=OPTIONS.get(policy, {})) as engine:
        first = kit.batch(columns={"a": [0.0, 0.5], "b": [0.5, 1.0]}, group_ids=[0, 0], step=1)
        engine.step_end(engine.score(first))  # multipliers that are not 0

        @given(steps())
        @settings(max_examples=60, deadline=None)
        def holds(step):
            silent, spoken = compare(kit, engine, step)
            assert silent <= spoken + 1e-9

        holds()


@pytest.mark.parametrize("way", ["group", "batch", "running"])
def test_an_abstention_never_pays_whatever_is_normalised(kit, way):
    with kit.engine(*mounts(kit, normalize=way)) as engine:
        first = kit.batch(columns={"a": [0.0, 0.5], "b": [0.5, 1.0]}, group_ids=[0, 0], step=1)
        engine.step_end(engine.score(first))

        @given(steps())
        @settings(max_examples=60, deadline=None)
        def holds(step):
            silent, spoken = compare(kit, engine, step)
            assert silent <= spoken + 1e-9

        holds()
