"""Weights and their changes in words."""

from __future__ import annotations

from verl_core.rewards.schedules import Linear, Step
from verl_core.trainer.weight_text import change_texts, setting_text

LINE = Linear(1.5, 1.0, 10).as_dict()


def test_a_setting_is_a_number_or_its_schedule_in_words():
    assert setting_text(0.5) == "0.5"
    assert setting_text(LINE) == "linear 1.5 → 1 over 10 steps"
    assert setting_text(Linear(1.5, 1.0, 10, start=5).as_dict()) == (
        "linear 1.5 → 1 over steps 5 to 15"
    )
    assert setting_text(Step(1.0, ((5, 0.5), (9, 0.0))).as_dict()) == (
        "1, 0.5 from step 5, 0 from step 9"
    )


def test_changes_are_told_mount_by_mount_and_only_those():
    assert change_texts({"a": 1.0, "b": 1.0}, {"b": 2.0, "c": 3.0}) == [
        "b 1 → 2",
        "c new: 3",
        "a removed",
    ]
    assert change_texts({"a": 1.0}, {"a": 1.0}) == []
    assert change_texts({}, {"a": 1.0, "b": LINE}) == ["a 1", "b linear 1.5 → 1 over 10 steps"]


def test_no_arrow_of_a_change_is_taken_for_one_of_a_schedule():
    assert change_texts({"a": LINE}, {"a": 1.0}) == ["a → 1 (was linear 1.5 → 1 over 10 steps)"]
    assert change_texts({"a": 1.0}, {"a": LINE}) == ["a → linear 1.5 → 1 over 10 steps (was 1)"]
