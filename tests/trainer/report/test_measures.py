"""What is measured on held-out rows, and the verdict that is drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verl_core.trainer.report.measures import Measure, contributions, measure_all
from verl_core.trainer.report.verdict import verdict

Rows = list[dict[str, Any]]
HeldOut = Callable[..., Rows]


def row(prompt: str, fused: float | None, **more: Any) -> dict[str, Any]:
    """A held-out row of one mount, `tone`, that gives its fused reward."""
    part = {"role": "reward", "raw": fused, "weight": 1.0, "contribution": fused, "status": "ok"}
    explain = {"additive": True, "gate": "none", "blocked": False, "mounts": {"tone": part}}
    return {
        "sample_id": f"{prompt}-0",
        "prompt_id": prompt,
        "response": "fine",
        "reference": None,
        "finish_reason": "stop",
        "tokens": 3,
        "fused": fused,
        "explain": {**explain, **more.pop("explain", {})},
        **more,
    }


def named(measures: list[Measure], name: str) -> Measure:
    return next(measure for measure in measures if measure.name == name)


def test_every_measure_of_a_full_run_is_there(held_out: HeldOut) -> None:
    measures = measure_all(held_out(30, 0.2, seed=1), held_out(30, 0.9, seed=2))
    assert [measure.name for measure in measures] == [
        "fused", "accuracy", "tone", "conversion", "compliance",
        "gate", "repetition", "similarity", "length", "truncated",
    ]  # fmt: skip
    assert named(measures, "gate").label == "guard spoke"
    assert named(measures, "length").reference == pytest.approx(40.0)
    assert all(measure.pair is not None and measure.pair.diff.n == 30 for measure in measures)


def test_blocked_rows_are_in_no_mean_of_any_measure() -> None:
    before = [row("a", 0.2), row("b", 0.4, tokens=5)]
    blocked = row("b", None, tokens=1000, response="x x x x", explain={"blocked": True})
    measures = measure_all(before, [row("a", 0.6), blocked])
    fused, length = named(measures, "fused").pair, named(measures, "length").pair
    assert fused is not None
    assert length is not None
    assert (fused.diff.n, fused.before.mean, fused.after.mean) == (1, 0.2, 0.6)
    assert (length.before.mean, length.after.mean) == (3.0, 3.0)


def test_a_mounts_score_counts_only_where_it_gave_one() -> None:
    abstained = row("b", 0.9)
    abstained["explain"]["mounts"]["tone"] |= {"status": "abstained", "raw": None}
    measures = measure_all([row("a", 0.2), row("b", 0.4)], [row("a", 0.3), abstained])
    tone = named(measures, "tone").pair
    assert tone is not None
    assert tone.diff.n == 1


def test_several_answers_to_a_prompt_count_as_one() -> None:
    before = [row("a", 0.0), row("a", 1.0), row("b", 0.5)]
    after = [row("a", 1.0), row("a", 1.0), row("b", 1.0)]
    fused = named(measure_all(before, after), "fused").pair
    assert fused is not None
    assert (fused.diff.n, fused.diff.mean, fused.diff.se) == (2, 0.5, 0.0)


def test_each_of_several_gates_has_a_rate_beside_that_of_any() -> None:
    def gated(prompt: str, *spoke: str) -> dict[str, Any]:
        parts = {
            name: {"role": "gate", "severity": "veto" if name in spoke else "none"}
            for name in ("words", "law")
        }
        mounts = {**row(prompt, 0.5)["explain"]["mounts"], **parts}
        word = "veto" if spoke else "none"
        return row(prompt, 0.5, explain={"gate": word, "mounts": mounts})

    before = [gated("a", "words"), gated("b", "law"), gated("c"), gated("d")]
    measures = measure_all(before, [gated(p) for p in "abcd"])
    rates = {m.name: m.before.mean for m in measures if m.kind == "gate" and m.before}
    assert rates == {"gate": 0.5, "gate:words": 0.25, "gate:law": 0.25}


def test_contributions_and_the_rest_make_the_whole_change(held_out: HeldOut) -> None:
    before, after = held_out(40, 0.1, seed=3), held_out(40, 0.8, seed=4)
    for rows in (before, after):
        for one in rows:
            one["fused"] -= 0.25  # something that no mount answers for
    parts = contributions(before, after)
    fused = named(measure_all(before, after), "fused").pair
    assert fused is not None
    assert [part.mount for part in parts][-2:] == ["guard", "rest"]
    assert sum(part.pair.diff.mean for part in parts) == pytest.approx(fused.diff.mean)
    assert sum(part.pair.before.mean for part in parts) == pytest.approx(fused.before.mean)


def test_contributions_that_do_not_add_up_are_not_shown_as_if_they_did() -> None:
    rows = [row("a", 0.5, explain={"additive": False})]
    assert contributions(rows, rows) == []


def test_a_run_that_learnt_meets_every_check(held_out: HeldOut) -> None:
    block = verdict(measure_all(held_out(120, 0.1, seed=1), held_out(120, 0.9, seed=2)))
    assert [check["met"] for check in block["checks"]] == [True] * 6
    assert block["fused"]["z"] > 5
    assert block["fused"]["diff"] == pytest.approx(
        block["fused"]["after"] - block["fused"]["before"]
    )
    assert block["length"]["reference"] == pytest.approx(40.0)


def test_a_run_that_got_worse_misses_them_and_says_so(held_out: HeldOut) -> None:
    block = verdict(measure_all(held_out(120, 0.9, seed=1), held_out(120, 0.1, seed=2)))
    missed = [check["name"] for check in block["checks"] if not check["met"]]
    assert missed == [
        "fused reward rises",
        "the gate has something to teach",
        "the gate's rate falls",
        "repetition does not rise",
        "likeness to the references does not fall",
        "length keeps to the references",
    ]


def test_checks_that_a_run_cannot_have_are_left_out() -> None:
    rows = [row("a", 0.5), row("b", 0.7)]
    names = [check["name"] for check in verdict(measure_all(rows, rows))["checks"]]
    assert names == ["fused reward rises", "repetition does not rise"]


def test_no_evaluation_has_no_verdict() -> None:
    assert verdict([]) == {}
    assert verdict(measure_all([row("a", 0.5)], None)) == {}


@pytest.mark.parametrize(
    ("before", "after", "met"),
    # The references are 50 tokens long.
    [(50, 41, True), (50, 39, False), (20, 25, True), (90, 100, False), (90, 85, True)],
)
def test_length_is_right_when_near_the_references_or_nearer_than_before(
    before: int, after: int, met: bool
) -> None:
    def rows(tokens: int) -> Rows:
        return [row(p, 0.5, tokens=tokens, reference="x", reference_tokens=50) for p in "abc"]

    checks = verdict(measure_all(rows(before), rows(after)))["checks"]
    found = next(check for check in checks if check["name"] == "length keeps to the references")
    assert found["met"] is met
