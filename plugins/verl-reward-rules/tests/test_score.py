"""How rules become a score, and what a reader is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_reward_rules import Rules, RulesConfig

TONE = r"""
score: {base: 0.1, min: 0.0, max: 1.0}
rules:
  - {name: greeting, regex: '(?i)\bhello', points: 0.5, reason: greets the customer}
  - {name: short, length: {unit: words, max: 4}, points: 0.3}
  - {name: shouting, contains: '!!', points: -0.4, reason: shouts}
  - {name: no-slang, must_not: true, contains: [dude, bro], reason: slang}
  - {name: euro, must: true, contains: euro}
"""


@pytest.mark.parametrize(
    ("response", "score", "reason"),
    [
        ("Hello, 4 euro", 0.9, "greeting +0.5 (greets the customer); short +0.3"),
        ("it costs no more than 4 euro", 0.1, "no rule fired"),
        ("it costs no more than 4 euro!!", 0.0, "shouting -0.4 (shouts)"),
        ("Hello bro, 4 euro", 0.0, "greeting +0.5 (greets the customer); short +0.3; "
         "no-slang broken (slang)"),
        ("4 pounds it is, my dear", 0.0, "euro broken"),
        ("", 0.0, "short +0.3; euro broken"),
    ],
)  # fmt: skip
def test_points_add_up_and_duties_set_the_lowest_score(
    rules, batch_of, response, score, reason
) -> None:
    result = rules(TONE).score(batch_of([response]))
    assert result.scores[0] == pytest.approx(score)
    assert result.reasons == {0: reason}


def test_extras_tell_where_each_condition_holds(rules, batch_of) -> None:
    result = rules(TONE).score(batch_of(["hello dude", "4 euro for the large blue one"]))
    assert result.extras == {
        "greeting": [1.0, 0.0],
        "short": [1.0, 0.0],
        "shouting": [0.0, 0.0],
        "no-slang": [1.0, 0.0],
        "euro": [0.0, 1.0],
    }


def test_the_bounds_of_the_file_are_those_of_the_score(rules, batch_of) -> None:
    built = rules(
        "score: {min: -2, max: 3}\n"
        "rules:\n"
        "  - {name: up, contains: u, points: 50}\n"
        "  - {name: down, contains: d, points: -50}\n"
        "  - {name: never, must_not: true, contains: '!'}\n"
    )
    assert built.score_range == (-2.0, 3.0)
    assert list(built.score(batch_of(["u", "d", "ud", "", "u!"])).scores) == [3, -2, 0, 0, -2]


def test_without_a_score_part_it_runs_from_zero_to_one(rules) -> None:
    assert rules("rules: [{name: a, contains: x, points: 7}]").score_range == (0.0, 1.0)


def test_a_base_that_is_left_out_is_the_nearest_to_zero(rules, batch_of) -> None:
    built = rules("score: {min: 0.2}\nrules: [{name: a, contains: x, points: 0.5}]")
    assert list(built.score(batch_of(["", "x"])).scores) == [0.2, 0.7]


def test_the_range_is_known_before_setup(tmp_path) -> None:
    path = tmp_path / "tone.yaml"
    path.write_text("score: {max: 5}\nrules: [{name: a, contains: x, points: 7}]")
    assert Rules(RulesConfig(rules=path)).score_range == (0.0, 5.0)


def test_a_rule_can_look_at_the_prompt_or_at_the_answer(rules, batch_of) -> None:
    built = rules(
        "rules:\n"
        "  - {name: asked, on: prompt, contains: price, points: 0.25}\n"
        "  - {name: answer-short, on: answer, length: {max: 4}, points: 0.5}\n"
    )
    batch = batch_of(
        ["<think>so long a thought</think> 24", "so long an answer"],
        prompts=[[{"role": "user", "content": "the price?"}], "what?"],
    )
    assert list(built.score(batch).scores) == [0.75, 0.0]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.text(alphabet="Hello bro!euro \n猫", max_size=40), min_size=1, max_size=8),
    st.data(),
)
def test_scores_keep_the_contract_in_any_order(rules, batch_of, responses, data) -> None:
    built, batch = rules(TONE), batch_of(responses)
    order = data.draw(st.permutations(range(len(responses))))
    result, moved = built.score(batch), built.score(batch.take(order))
    scores, scored = result.checked(
        provider="rules", n=len(responses), score_range=built.score_range
    )
    assert scored.all()
    assert np.array_equal(scores[order], np.asarray(moved.scores))
    assert [result.reasons[row] for row in order] == [moved.reasons[i] for i in range(len(order))]


def test_an_empty_batch_has_an_empty_answer(rules, batch_of) -> None:
    assert len(rules(TONE).score(batch_of([])).scores) == 0
