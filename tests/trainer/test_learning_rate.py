"""The learning rate is a function of the step alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.trainer.learning_rate import learning_rate

SCHEDULES = st.sampled_from(["constant", "linear", "cosine"])


@given(st.integers(1, 40), st.integers(0, 40), SCHEDULES)
def test_it_rises_while_it_warms_up_then_never_and_stays_within_bounds(steps, warmup, schedule):
    rates = [
        learning_rate(2.0, step, steps=steps, warmup=warmup, schedule=schedule)
        for step in range(1, steps + 1)
    ]
    assert all(0.0 < rate <= 2.0 for rate in rates)
    rising, rest = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert rest == sorted(rest, reverse=True)
    if rest:
        assert rest[0] == 2.0


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447]),
    ],
)
def test_schedules_after_a_warm_up_of_two_steps(schedule, rates):
    found = [learning_rate(1.0, step, steps=6, warmup=2, schedule=schedule) for step in range(1, 7)]
    assert found == pytest.approx(rates, abs=1e-6)


def test_behind_the_last_step_nothing_is_left():
    assert learning_rate(1.0, 7, steps=6, warmup=0, schedule="linear") == 0.0
    assert learning_rate(1.0, 99, steps=6, warmup=0, schedule="cosine") == 0.0
