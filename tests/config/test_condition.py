"""Conditions: what they mean, and how a bad one is refused."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config.condition import Condition, ConditionError, parse_condition


@pytest.mark.parametrize(
    ("text", "values", "answer"),
    [
        ('data_source == "math"', {"data_source": "math"}, True),
        ('data_source == "math"', {"data_source": "code"}, False),
        ("format >= 1", {"format": 1.0}, True),
        ("format >= 1", {"format": 0.5}, False),
        ("format >= 1", {"format": None}, False),
        ("format < 1", {"format": None}, False),
        ("not format >= 1", {"format": None}, True),
        ("level == null", {"level": None}, True),
        ("level == null", {}, True),
        ("level != 'easy'", {"level": None}, True),
        ("x > -1.5e0", {"x": -1}, True),
        ("1 < x", {"x": 2}, True),
        ("word-count >= 3", {"word-count": 3}, True),
        ("extra_info.level >= 3", {"extra_info": {"level": 4}}, True),
        ("extra_info.level == null", {"extra_info": {}}, True),
        ("lang in ['de', 'en']", {"lang": "en"}, True),
        ("lang not in [ 'de' , 'en' ]", {"lang": "fr"}, True),
        ("'urgent' in tags", {"tags": ["urgent"]}, True),
        ("'x' in tags", {"tags": None}, False),
        ("is_math", {"is_math": True}, True),
        ("is_math", {"is_math": None}, False),
        ("a and not b or c", {"a": True, "b": True, "c": True}, True),
        ("a and not (b or c)", {"a": True, "b": False, "c": True}, False),
        ("(a == 1) and b == 2", {"a": 1, "b": 2}, True),
        ("quote == 'it\\'s'", {"quote": "it's"}, True),
        ("准确 >= 1", {"准确": 1}, True),
        ("a == true", {"a": True}, True),
        ("a == true", {"a": 1}, False),
        ("a == false", {"a": 0}, False),
        ("a == 1", {"a": True}, False),
        ("a != 1", {"a": True}, True),
        ("a == 0.0", {"a": False}, False),
        ("a == 1", {"a": 1.0}, True),
        ("a == b", {"a": True, "b": 1}, False),
        ("a == b", {"a": [1, {"x": True}], "b": (1.0, {"x": 1})}, False),
        ("a == b", {"a": [1, {"x": True}], "b": (1.0, {"x": True})}, True),
        ("a == b", {"a": [1], "b": [1, 2]}, False),
        ("a in [0, 1]", {"a": True}, False),
        ("a not in [0, 1]", {"a": False}, True),
        ("a in [0, true]", {"a": True}, True),
        ("1 in tags", {"tags": [True]}, False),
        ("[1] in tags", {"tags": [[True], [1]]}, True),
        ("'x' in a", {"a": {"x": 1}}, True),
        ("a == true", {"a": np.bool_(True)}, True),
        ("a == 1", {"a": np.bool_(True)}, False),
        ("a == 1", {"a": np.int64(1)}, True),
        ("a", {"a": 1}, True),
    ],
)
def test_a_condition_holds_or_not(text: str, values: dict[str, object], answer: bool) -> None:
    assert parse_condition(text)(values) is answer


def test_a_condition_knows_the_names_that_it_reads() -> None:
    condition = parse_condition("a-b >= 1 and not (c.d.e == 'f' or g in [h, 2])")
    assert condition.names == {"a-b", "c", "g", "h"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a name or a value at character 1, found the end"),
        ("a = 1", "write == for equality"),
        ("a >=", "expected a name or a value at character 5"),
        ("a >= 1 b", "found 'b'"),
        ("(a >= 1", "expected ')'"),
        ("a >= 1)", "found ')'"),
        ("a in [1, 2", "expected ',' or ']'"),
        ("a not 1", "expected 'in'"),
        ("1 < 2", "always the same"),
        ("a < b < c", "found '<'"),
        ("a + 1 > 2", "cannot read '+"),
        ("a > 12abc", "cannot read '12abc'"),
        ("__import__('os')", "found '('"),
        ("and", "found 'and'"),
        ("a == 'open", "cannot read"),
        ("a" * 2000, "at most 1000 characters"),
        ("(" * 200 + "a" + ")" * 200, "nested deeper"),
        ("not " * 200 + "a", "nested deeper"),
        ("a in " + "[" * 200 + "]" * 200, "nested deeper"),
    ],
)
def test_a_bad_condition_says_what_was_expected_and_where(text: str, words: str) -> None:
    with pytest.raises(ConditionError) as caught:
        parse_condition(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["a && b", "a is 1", "a ~ 'x'", "a >", "a not 1", "(a"])
def test_a_condition_that_cannot_be_read_is_told_the_operators(text: str) -> None:
    with pytest.raises(ConditionError) as caught:
        parse_condition(text)
    assert "(operators: == != < <= > >= in, not in, and, or, not)" in str(caught.value)


@pytest.mark.parametrize("text", ["a < 'x'", "a in 3", "'x' in a"])
def test_what_has_no_order_is_an_error_and_not_false(text: str) -> None:
    condition = parse_condition(text)
    with pytest.raises(ConditionError):
        condition({"a": 1})


@pytest.mark.parametrize(
    ("text", "value"),
    [("a > 0", True), ("a <= 1", False), ("a < true", 0), ("a >= true", True), ("a < 1.5", True)],
)
def test_a_boolean_is_in_no_order_with_anything(text: str, value: object) -> None:
    with pytest.raises(ConditionError, match="these two have no order"):
        parse_condition(text)({"a": value})


def test_a_condition_knows_whether_a_boolean_is_written_in_it() -> None:
    assert parse_condition("a == true or b in [1, False]").booleans
    assert not parse_condition("a == 'true' and truest and b == null and c in [1, 0]").booleans


@given(st.text(alphabet="ab01.<>=!()[],'\" andorti-", max_size=30))
def test_any_text_is_a_condition_or_a_condition_error(text: str) -> None:
    condition: Condition | None = None
    with contextlib.suppress(ConditionError):
        condition = parse_condition(text)
    assert condition is None or condition.names


ATOMS = st.sampled_from(["a > 0", "b <= 1", "a == b", "c", "a in [0, 1]", "c not in [1, 2]"])
TEXTS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not {}".format, inner),
        st.builds("{} or {} and {}".format, inner, inner, inner),
    ),
    max_leaves=6,
)
NUMBERS = st.sampled_from([-1, 0, 0.5, 1, 2])


@given(TEXTS, NUMBERS, NUMBERS, NUMBERS)
def test_it_means_what_python_would_mean(text: str, a: float, b: float, c: float) -> None:
    values = {"a": a, "b": b, "c": c}
    assert parse_condition(text)(values) is bool(eval(text, {}, dict(values)))
