"""What each condition takes for true."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_reward_rules.conditions import count_sentences

here = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def holds(built, batch) -> list[bool]:
    return [score == 1.0 for score in built.score(batch).scores]


@pytest.mark.parametrize(
    ("condition", "yes", "no"),
    [
        (r"regex: '(?i)\b(hello|thank)'", ["Hello!", "so, THANKS"], ["shello", "", "hallo"]),
        (r"regex: '^\d+$'", ["42"], ["42\n", "4 2", "x42"]),
        (r"regex: 'ünder', ignore_case: true", ["ÜNDER"], ["under"]),
        (r"regex: '\p{Han}{2}'", ["说中文"], ["说 Chinese"]),
        ("contains: bro", ["hey bro", "broken"], ["Bro", ""]),
        ("contains: [dude, bro], ignore_case: true", ["DUDE", "a Bro"], ["du de"]),
        ("contains: STRASSE, ignore_case: true", ["Lange Straße"], ["Str."]),
        ("contains_all: [price, euro]", ["euro: the price"], ["price", "euro", ""]),
        ("contains: 优惠", ["今天有优惠"], ["优 惠"]),
        ("length: {unit: words, min: 2, max: 3}", ["a b", "a  b\nc"], ["a", "a b c d", ""]),
        ("length: {max: 3}", ["", "abc", "优惠券"], ["abcd"]),
        ("length: {unit: sentences, min: 2}", ["One. Two?", "一。二"], ["One 3.5 two.", ""]),
        ("json: true", ['{"a": 1}', " [1, 2]\n", '"x"', "0"], ["{a: 1}", "NaN", "", "{} x"]),
        ("json: {keys: [a, b]}", ['{"b": 0, "a": null}'], ['{"a": 1}', "[]", '["a", "b"]']),
        ("contains: bro, negate: true", ["hello", ""], ["bro"]),
    ],
)
def test_a_condition_tells_these_texts_apart(rule, batch_of, condition, yes, no) -> None:
    built = rule(condition)
    assert holds(built, batch_of(yes)) == [True] * len(yes)
    assert holds(built, batch_of(no)) == [False] * len(no)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("no mark", 1),
        ('He said "go!" Then he left.', 2),
        ("Really?! Yes… (Fine.) ok", 4),
        ("它便宜！很好。买吧", 3),
        ("see v1.2.3 here.", 1),
    ],
)
def test_sentences_are_counted(text, count) -> None:
    assert count_sentences(text) == count


@here
@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_whatever_json_writes_is_json(rule, batch_of, value) -> None:
    assert holds(rule("json: true"), batch_of([json.dumps(value)])) == [True]


@here
@given(st.text(min_size=1), st.text(), st.text())
def test_a_negated_rule_holds_where_the_rule_does_not(rule, batch_of, word, before, after) -> None:
    batch = batch_of([before, before + after, before + word + after])
    plain, negated = (
        holds(rule(f"contains: {json.dumps('x' + word)}, negate: {flag}"), batch)
        for flag in ("false", "true")
    )
    assert negated == [not held for held in plain]


def test_a_pattern_that_explodes_elsewhere_is_linear_here(rule, batch_of) -> None:
    # Python's re needs 2^40 steps for this one; if RE2 did, the test's own timeout would end it.
    built = rule(r"regex: '^(a+)+$'")
    assert holds(built, batch_of(["a" * 40 + "!", "a" * 100_000 + "!", "a" * 1000])) == [
        False,
        False,
        True,
    ]


def test_nested_brackets_by_the_thousand_are_no_json(rule, batch_of) -> None:
    assert holds(rule("json: true"), batch_of(["[" * 200_000, "9" * 10_000])) == [False, False]


def test_odd_text_is_read_like_any_other(rules, batch_of) -> None:
    odd = ["\x00", "\ud800", "e\u0301", "🙂", "\u202e", "\r\n", "x" * 100_000]
    built = rules(
        "rules:\n"
        "  - {name: a, regex: x, points: 0.1}\n"
        "  - {name: b, contains: x, ignore_case: true, points: 0.1}\n"
        "  - {name: c, length: {unit: sentences, min: 9}, points: 0.1}\n"
        "  - {name: d, json: true, points: 0.1}\n"
    )
    result = built.score(batch_of(odd))
    scores, scored = result.checked(provider="rules", n=len(odd), score_range=built.score_range)
    assert scored.all()
    assert list(scores) == [0, 0, 0, 0, 0, 0, 0.2]
