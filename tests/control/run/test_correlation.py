from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.control.run.correlation import correlations, opposed, window_of

STEPS = list(range(1, 101))


def noisy(values: list[float], seed: int) -> list[float]:
    return (np.asarray(values) + np.random.default_rng(seed).normal(0, 0.02, len(values))).tolist()


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=8, max_size=24),
    st.integers(8, 20),
)
def test_it_is_pearsons_correlation_of_the_last_window(
    pairs: list[tuple[float, float]], window: int
) -> None:
    a, b = (np.round(np.array(values), 3) for values in zip(*pairs, strict=True))
    places, found = correlations({"a": a.tolist(), "b": b.tolist()}, window)
    for place, value in zip(places, found[0].values, strict=True):
        x, y = (values[max(0, place + 1 - window) : place + 1] for values in (a, b))
        if np.std(x) < 1e-3 or np.std(y) < 1e-3:
            continue
        assert value == pytest.approx(float(np.corrcoef(x, y)[0, 1]), abs=1e-6)


def test_what_does_not_move_correlates_with_nothing() -> None:
    _, found = correlations({"a": [0.1] * 30, "b": noisy([0.0] * 30, 1)}, 10)
    assert math.isnan(found[0].latest)


def test_missing_means_are_passed_over() -> None:
    a = noisy([i / 50 for i in range(60)], 1)
    b = noisy([i / 50 for i in range(60)], 2)
    b[10:20] = [math.nan] * 10
    _, found = correlations({"a": a, "b": b}, 16)
    assert found[0].latest > 0.9


def test_too_few_steps_say_nothing() -> None:
    assert correlations({"a": [0.0] * 7, "b": [1.0] * 7}, 8) == ([], [])


def test_the_strongest_pair_comes_first_and_200_steps_are_given() -> None:
    x = noisy([0.0] * 900, 1)
    means = {"a": x, "b": noisy([0.0] * 900, 2), "c": [-value for value in x]}
    places, found = correlations(means, 64)
    assert (found[0].first, found[0].second) == ("a", "c")
    assert found[0].latest == pytest.approx(-1.0)
    assert len(places) <= 200
    assert places[-1] == 899


def test_a_mark_where_one_rises_while_another_falls() -> None:
    up = [0.2] * 40 + [0.2 + i * 0.01 for i in range(30)] + [0.5] * 30
    down = [0.8] * 40 + [0.8 - i * 0.01 for i in range(30)] + [0.5] * 30
    means = {"tone": noisy(up, 1), "accuracy": noisy(down, 2), "still": noisy([0.3] * 100, 3)}
    marks = opposed(means, STEPS, 16)
    assert {(mark.rising, mark.falling) for mark in marks} == {("tone", "accuracy")}
    assert 41 <= marks[0].step <= 60
    assert marks[0].until >= 68
    assert marks[0].rise > 0 > marks[0].fall


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_is_seldom_marked(seed: int) -> None:
    means = {name: noisy([0.5] * 100, 10 * seed + i) for i, name in enumerate("abc")}
    assert len(opposed(means, STEPS, 25)) <= 1


def test_rising_together_is_no_mark() -> None:
    rise = [i / 100 for i in range(100)]
    assert opposed({"a": noisy(rise, 1), "b": noisy(rise, 2)}, STEPS, 25) == []


def test_the_window_follows_the_length_of_the_run() -> None:
    assert [window_of(n) for n in (0, 40, 100, 10_000)] == [8, 10, 25, 64]
    assert window_of(100, 30) == 30
