"""How the report tells a change of weights: what took effect, against what was in force."""

from __future__ import annotations

import pytest

from verl_core.trainer.report.story import _checks, changes, number, percent, setting, signed


def revision(author, before, after, first_step, reason=None):
    return {
        "author": author,
        "before": before,
        "after": after,
        "first_step": first_step,
        "reason": reason,
    }


START = {"tone": 1.0, "accuracy": 2.0}


def test_revisions_between_two_steps_are_told_as_one_change():
    curl = {"tone": 0.5, "accuracy": 2.0}
    both = {"tone": 0.5, "accuracy": 3.0}
    told = changes(
        [
            revision("config", {}, START, None),
            revision("http", START, curl, None, "too loud"),
            revision("ada", curl, both, None),
            revision("ada", both, both, 4),
        ]
    )
    assert told == [
        "From step 4 on, http and ada changed the weights while it trained: "
        "tone 1 → 0.5, accuracy 2 → 3 (“too loud”)."
    ]


def test_the_same_values_again_are_no_change():
    assert changes([revision("config", {}, START, 1), revision("ada", START, START, 2)]) == []


def test_a_change_that_no_step_was_scored_under_is_not_told():
    other = {"tone": 9.0, "accuracy": 2.0}
    assert changes([revision("config", {}, START, 1), revision("ada", START, other, None)]) == []


def test_a_schedule_is_told_whole():
    line = {"linear": {"from": 1.5, "to": 1.0, "steps": 10, "start": 0}}
    assert setting(line) == "linear 1.5 → 1 over 10 steps"
    told = changes(
        [revision("config", {}, {"tone": line}, 1), revision("ada", {}, {"tone": 1.0}, 2)]
    )
    assert told == [
        "From step 2 on, ada changed the weights while it trained: "
        "tone → 1 (was linear 1.5 → 1 over 10 steps)."
    ]


@pytest.mark.parametrize(("missed", "verb"), [(1, "is"), (2, "are")])
def test_missed_checks_are_counted_in_grammar(missed, verb):
    checks = [{"name": f"c{i}", "met": i >= missed} for i in range(6)]
    told = _checks({"verdict": {"checks": checks}})
    assert told.startswith(f"{missed} of 6 built-in checks {verb} not met: c0")


def test_what_is_rounded_to_zero_has_no_sign() -> None:
    assert [signed(value, 1) for value in (-0.04, 0.04, -0.06, 0.0)] == [
        "0.0",
        "0.0",
        "−0.1",
        "0.0",
    ]
    assert (number(-0.0004), number(-0.25), number(None)) == ("0.000", "−0.250", "–")
    assert percent(-0.0) == "0.0\u00a0%"
