from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config.limits import MAX_WEIGHT
from verl_core.rewards.schedules import (
    Cosine,
    Linear,
    Step,
    parse_schedule,
    setting_form,
    value_at,
    weight_value,
)

weights = st.floats(0, MAX_WEIGHT, allow_nan=False)


def test_linear_is_level_before_its_start_and_after_its_end() -> None:
    line = Linear(2.0, 0.5, steps=200, start=10)
    assert [line.value(step) for step in (0, 10, 110, 210, 10_000)] == [2.0, 2.0, 1.25, 0.5, 0.5]


def test_cosine_is_half_a_wave_between_its_ends() -> None:
    wave = Cosine(2.0, 1.0, steps=60, start=10)
    assert [wave.value(step) for step in (0, 10, 70, 999)] == [2.0, 2.0, 1.0, 1.0]
    # cos 60° is 1/2: a third of the way is a quarter of the change
    assert [wave.value(step) for step in (30, 40, 50)] == pytest.approx([1.75, 1.5, 1.25])


def test_step_holds_each_value_until_the_next_is_reached() -> None:
    stairs = Step(1.0, ((5, 0.5), (9, 0.0)))
    assert [stairs.value(step) for step in (0, 4, 5, 8, 9, 99)] == [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("kind", [Linear, Cosine])
@given(weights, weights, st.integers(1, 500), st.integers(0, 500), st.integers(0, 1200))
def test_a_way_between_two_values_never_leaves_their_range(
    kind: type[Linear], first: float, last: float, steps: int, start: int, step: int
) -> None:
    value = kind(first, last, steps, start).value(step)
    assert min(first, last) <= value <= max(first, last)


@pytest.mark.parametrize("kind", [Linear, Cosine])
@given(weights, weights, st.integers(1, 50), st.integers(0, 50))
def test_a_way_between_two_values_moves_one_way_only(
    kind: type[Linear], first: float, last: float, steps: int, start: int
) -> None:
    line = kind(first, last, steps, start)
    values = [line.value(step) for step in range(start + steps + 2)]
    slack = 4 * math.ulp(max(first, last))
    direction = 1 if last >= first else -1
    assert all(direction * (b - a) >= -slack for a, b in itertools.pairwise(values))
    assert values[0] == first
    assert values[-1] == last


settings = st.one_of(
    weights,
    st.builds(Linear, weights, weights, st.integers(1, 10**6), st.integers(0, 10**6)),
    st.builds(Cosine, weights, weights, st.integers(1, 10**6), st.integers(0, 10**6)),
    st.builds(
        lambda first, at: Step(first, tuple(sorted(at.items()))),
        weights,
        st.dictionaries(st.integers(0, 10**6), weights, min_size=1, max_size=5),
    ),
)


@given(settings)
def test_a_setting_survives_its_json_form(setting: float | Linear | Step) -> None:
    assert parse_schedule(json.loads(json.dumps(setting_form(setting)))) == setting


def test_a_plain_number_is_the_same_at_every_step() -> None:
    assert value_at(parse_schedule(2), 0) == value_at(parse_schedule(2), 10**9) == 2.0


@pytest.mark.parametrize(
    ("obj", "said"),
    [
        ({"linaer": {}}, "did you mean 'linear'"),
        ({"linear": {"from": 1, "to": 2}}, "'steps' is missing"),
        ({"linear": {"from": 1, "to": 2, "steps": 3, "star": 1}}, "did you mean 'start'"),
        ({"linear": {"from": 1, "to": 2, "steps": 0}}, "steps must be at least 1, not 0"),
        ({"linear": {"from": 1, "to": 2, "steps": True}}, "steps must be a whole number, not true"),
        ({"linear": {"from": 1, "to": 2, "steps": 2.5}}, "steps must be a whole number"),
        ({"linear": {"from": -1, "to": 2, "steps": 3}}, "from: -1 is below 0"),
        ({"linear": {"from": 1, "to": math.inf, "steps": 3}}, "to: inf is not finite"),
        ({"cosine": {"from": 1, "to": 2, "steps": 0}}, "cosine: steps must be at least 1"),
        ({"linear": 5}, "expected the keys from, start, steps, to"),
        ({"linear": {}, "step": {}}, "a schedule has one key"),
        ({"step": {"from": 1, "at": []}}, "at least one"),
        ({"step": {"from": 1, "at": "soon"}}, "at must be a list"),
        ({"step": {"from": 1, "at": [[5]]}}, r"at\[0\] must be \[step, value\]"),
        ({"step": {"from": 1, "at": [[5, 1], [5, 2]]}}, "step 5 does not come after 5"),
        ({"step": {"from": 1, "at": [[5, None]]}}, r"at\[0\]: null is not a number"),
    ],
)
def test_a_wrong_schedule_is_refused_in_words(obj: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_schedule(obj)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (True, "true is not a number"),
        (False, "false is not a number"),
        (None, "null is not a number"),
        ("2", "the string '2' is not a number"),
        ([1], "a list is not a number"),
        ({"a": 1}, "an object is not a number"),
        (1j, "a complex is not a number"),
        (math.nan, "nan is not finite"),
        (-math.inf, "-inf is not finite"),
        (10**400, "inf is not finite"),
        (-0.5, "-0.5 is below 0"),
    ],
)
def test_what_is_no_weight_is_refused_in_words(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        weight_value(value)


def test_minus_zero_is_zero() -> None:
    assert math.copysign(1.0, weight_value(-0.0)) == 1.0
