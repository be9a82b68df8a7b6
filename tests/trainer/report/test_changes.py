"""How the report tells a change of weights: what took effect, against what was in force."""

from __future__ import annotations

from verl_core.trainer.report.story import _changes


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
    told = _changes(
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
    assert _changes([revision("config", {}, START, 1), revision("ada", START, START, 2)]) == []


def test_a_change_that_no_step_was_scored_under_is_not_told():
    other = {"tone": 9.0, "accuracy": 2.0}
    assert _changes([revision("config", {}, START, 1), revision("ada", START, other, None)]) == []
