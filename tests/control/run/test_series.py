from __future__ import annotations

import math

import pytest

from verl_core.control.run.series import Series


def filled(steps: int, **options: int) -> Series:
    series = Series(**options)
    for step in range(1, steps + 1):
        series.add({"step": step, "a": float(step)})
    return series


def test_figures_stand_beside_their_steps() -> None:
    series = Series()
    series.add({"step": 1, "a": 1.0, "text": "no number", "flag": True})
    series.add({"step": 2, "b": 2})
    view = series.view("e")
    assert (view.edition, view.every, list(view.steps)) == ("e", 1, [1, 2])
    assert set(view.figures) == {"a", "b"}
    assert view.figures["a"][0] == 1.0
    assert math.isnan(view.figures["a"][1])
    assert math.isnan(view.figures["b"][0])
    assert (view.latest_step, view.latest) == (2, {"b": 2.0})


def test_only_later_steps_and_wanted_names() -> None:
    series = Series()
    for step in (1, 2, 5):
        series.add({"step": step, "reward/a": 1.0, "actor/kl": 2.0})
    view = series.view("e", after=2, prefixes=["actor/"])
    assert list(view.steps) == [5]
    assert {name: list(values) for name, values in view.figures.items()} == {"actor/kl": [2.0]}
    assert list(series.view("e", after=9).steps) == []


@pytest.mark.parametrize("steps", [8, 9, 16, 17, 100, 1000])
def test_a_long_run_is_held_coarsely_and_whole(steps: int) -> None:
    series = filled(steps, max_steps=8)
    view = series.view("e")
    assert len(view.steps) <= 8
    assert view.steps[0] == 1
    assert {b - a for a, b in zip(view.steps, view.steps[1:], strict=False)} <= {view.every}
    assert view.steps[-1] > steps - view.every
    assert list(view.figures["a"]) == [float(step) for step in view.steps]
    assert (view.latest_step, view.latest) == (steps, {"a": float(steps)})


def test_a_step_that_comes_again_takes_the_later_ones_away() -> None:
    series = filled(6)
    before = series.edition
    series.add({"step": 4, "a": 40.0})
    assert list(series.view("e").figures["a"]) == [1.0, 2.0, 3.0, 40.0]
    assert series.edition > before


def test_names_are_bounded() -> None:
    series = Series(max_keys=2)
    series.add({"step": 1, "a": 1.0, "b": 1.0, "c": 1.0})
    assert series.keys == ("a", "b")


@pytest.mark.parametrize("step", [None, "3", 1.5, True])
def test_a_record_without_a_step_is_left_out(step: object) -> None:
    series = Series()
    series.add({"step": step, "a": 1.0})
    assert list(series.view("e").steps) == []
