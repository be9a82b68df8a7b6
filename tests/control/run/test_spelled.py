from __future__ import annotations

from typing import Any

import pytest

from verl_core.control.run.spelled import spelled_sum
from verl_core.rewards import RewardEngine
from verl_reward_sdk import RewardBatch


def scored(engine: RewardEngine, *responses: str) -> list[dict[str, Any]]:
    batch = RewardBatch.from_records(
        [
            {"prompt": "Well?", "response": text, "ground_truth": "It is fine, please."}
            for text in responses
        ]
    )
    table = engine.score(batch)
    return [{"explain": table.explain(row)} for row in range(len(table))]


def test_the_parts_of_a_real_row_add_up(engine: RewardEngine) -> None:
    (found,) = map(spelled_sum, scored(engine, "It is fine, please."))
    assert [(t["mount"], t["text"], round(t["value"], 6)) for t in found["terms"]] == [
        ("style", "score 0.75 × weight 1", 0.75),
        ("overlap", "score 1 × weight 0.5", 0.5),
    ]
    assert found["total"] == pytest.approx(found["fused"]) == pytest.approx(1.25)
    assert (found["holds"], found["note"]) == (True, "")


def test_a_veto_takes_what_it_takes(engine: RewardEngine) -> None:
    (found,) = map(spelled_sum, scored(engine, "A rogue, please."))
    guard = found["terms"][-1]
    assert (guard["mount"], guard["role"]) == ("guard", "gate")
    assert "veto" in guard["text"]
    assert found["fused"] == pytest.approx(-1.0)
    assert found["total"] == pytest.approx(-1.0)
    assert found["holds"] is True


def explain(**more: Any) -> dict[str, Any]:
    part = {"role": "reward", "raw": 0.5, "normalised": 0.5, "weight": 2.0, "contribution": 1.0}
    part |= {"status": "ok", "reason": None, "severity": "none"}
    mounts = {"a": part | more.pop("part", {})}
    return {"explain": {"fused": 1.0, "additive": True, "mounts": mounts, **more}}


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({}, "score 0.5 × weight 2"),
        ({"raw": 50.0}, "score 50, taken as 0.5 × weight 2"),
        (
            {"status": "abstained", "raw": None},
            "no score of its own: the neutral place 0.5 × weight 2",
        ),
        ({"status": "failed", "raw": None}, "it failed: the default 0.5 × weight 2"),
        ({"contribution": 0.25}, "score 0.5, weight 2, as the policy counts them"),
        ({"normalised": None}, "score unknown"),
        ({"raw": -0.5, "normalised": -0.5, "contribution": -1.0}, "score −0.5 × weight 2"),
    ],
)
def test_how_a_term_came_about(part: dict[str, Any], text: str) -> None:
    assert [term["text"] for term in spelled_sum(explain(part=part))["terms"]] == [text]


def test_a_sum_that_does_not_hold_says_so() -> None:
    assert spelled_sum(explain(fused=3.0))["holds"] is False


def test_a_row_without_a_reward_says_why() -> None:
    found = spelled_sum(explain(fused=None, masked="a failed", reason="a failed"))
    assert (found["terms"], found["total"], found["holds"]) == ([], None, None)
    assert found["note"] == "No reward: the row is masked and trains nothing (a failed)."
    blocked = spelled_sum(explain(fused=None, blocked=True, reason="gate failed"))
    assert "blocked (gate failed)" in blocked["note"]


def test_a_policy_that_does_not_add_is_not_added_up() -> None:
    found = spelled_sum(explain(additive=False))
    assert (found["total"], found["holds"]) == (None, None)
    assert "does not add" in found["note"]
    assert found["terms"][0]["text"] == "score 0.5, weight 2"


@pytest.mark.parametrize("odd", [{}, {"explain": []}, {"explain": {"mounts": {"a": 3}}}])
def test_odd_records_have_no_sum(odd: dict[str, Any]) -> None:
    assert spelled_sum(odd)["fused"] is None
