"""The figures behind the report, against what they are defined to be."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from verl_core.trainer.report.statistics import (
    by_prompt,
    change,
    estimate,
    paired,
    repetition,
    similarity,
    t_quantile,
    wilson,
    words,
)

numbers = st.floats(min_value=-1e6, max_value=1e6)


@pytest.mark.parametrize(
    ("freedom", "expected"),
    # Two-sided 95 % points of Student's t: Abramowitz & Stegun, table 26.10.
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_t_quantile_matches_the_printed_table(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, abs=1e-3)


def test_t_quantile_nears_the_normal_one_and_refuses_no_freedom() -> None:
    assert t_quantile(100_000) == pytest.approx(1.95996, abs=1e-3)
    with pytest.raises(ValueError, match="degrees of freedom"):
        t_quantile(0)


def test_an_estimate_is_the_mean_with_its_standard_error_and_interval() -> None:
    found = estimate(np.array([1.0, 2.0, 3.0, 4.0]))
    assert found.mean == 2.5
    assert found.se == pytest.approx(statistics.stdev([1, 2, 3, 4]) / 2)
    assert found.low == pytest.approx(2.5 - 3.1824 * 0.645497, abs=1e-3)
    assert found.high == pytest.approx(2.5 + 3.1824 * 0.645497, abs=1e-3)


def test_one_prompt_has_a_mean_and_no_error() -> None:
    found = estimate(np.array([0.5]))
    assert (found.mean, found.se, found.low, found.high) == (0.5, None, None, None)


def test_rows_of_a_prompt_are_averaged_before_anything_else() -> None:
    found = by_prompt(["a", "b", "a", "c"], np.array([1.0, 5.0, 3.0, math.nan]))
    assert found == {"a": 2.0, "b": 5.0}


def test_only_prompts_of_both_sides_are_compared() -> None:
    pair = paired({"a": 1.0, "b": 2.0, "c": 9.0}, {"b": 4.0, "a": 2.0, "d": 0.0})
    assert pair is not None
    assert pair.diff.n == 2
    assert (pair.before.mean, pair.after.mean, pair.diff.mean) == (1.5, 3.0, 1.5)
    assert pair.diff.se == pytest.approx(0.5)
    assert pair.z == pytest.approx(3.0)
    assert paired({"a": 1.0}, {"b": 1.0}) is None


def test_a_difference_without_spread_has_no_z_and_can_still_be_judged() -> None:
    pair = paired({"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 2.5})
    assert pair is not None
    assert pair.z is None
    assert pair.above(5)
    assert not pair.below(0)


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30))
def test_pairing_is_the_mean_of_differences_and_antisymmetric(
    values: list[tuple[float, float]],
) -> None:
    before = {str(i): old for i, (old, _) in enumerate(values)}
    after = {str(i): new for i, (_, new) in enumerate(values)}
    forth, back = paired(before, after), paired(after, before)
    assert forth is not None
    assert back is not None
    assert forth.diff.mean == pytest.approx(forth.after.mean - forth.before.mean, abs=1e-6)
    assert back.diff.mean == pytest.approx(-forth.diff.mean, abs=1e-6)
    assert back.diff.se == pytest.approx(forth.diff.se, abs=1e-6)


@given(st.lists(numbers, min_size=2, max_size=30), st.integers(min_value=2, max_value=4))
def test_repeating_a_prompts_rows_adds_no_certainty(values: list[float], copies: int) -> None:
    prompts = [str(i) for i in range(len(values))]
    once = by_prompt(prompts, np.array(values))
    often = by_prompt(prompts * copies, np.array(values * copies))
    first, second = estimate(np.array([*once.values()])), estimate(np.array([*often.values()]))
    assert second.n == first.n
    assert second.se == pytest.approx(first.se, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0.0),
        ("hello", 0.0),
        ("a b", 0.0),
        ("a b c d", 0.0),
        ("a b a b", 1 / 3),
        ("a a a a a", 3 / 4),
        ("The cat. THE CAT!", 1 / 3),
        ("好的好的", 1 / 3),
        ("!!! ... ???", 0.0),
    ],
)
def test_repetition_is_the_share_of_word_pairs_seen_before(text: str, expected: float) -> None:
    assert repetition(text) == pytest.approx(expected)


def test_words_are_folded_and_unspaced_scripts_split_into_characters() -> None:
    assert words("Don't STOP, 你好world — Straße 3.5") == [
        "don't", "stop", "你", "好", "world", "strasse", "3", "5",
    ]  # fmt: skip


@given(st.text(max_size=60))
def test_repetition_is_a_share_below_one(text: str) -> None:
    assert 0.0 <= repetition(text) < 1.0


@given(st.text(min_size=1, max_size=40))
def test_an_answer_is_wholly_like_itself(text: str) -> None:
    assume(text.strip())
    assert similarity(text, [text]) == 1.0


@given(st.text(max_size=30), st.lists(st.text(max_size=30), max_size=3))
def test_similarity_is_that_of_the_nearest_reference(answer: str, references: list[str]) -> None:
    found = similarity(answer, references)
    alone = [value for r in references if (value := similarity(answer, [r])) is not None]
    assert found == (max(alone) if alone else None)
    assert found is None or 0.0 <= found <= 1.0


def test_similarity_needs_a_reference_that_is_not_blank() -> None:
    assert similarity("hello", []) is None
    assert similarity("hello", ["  \n"]) is None
    assert similarity("", ["hello"]) == 0.0
    assert similarity("abcd", ["abxd"]) == pytest.approx(0.75)


shares = st.integers(min_value=1, max_value=400).flatmap(
    lambda count: st.tuples(st.integers(min_value=0, max_value=count), st.just(count))
)


@given(shares)
def test_the_interval_of_a_share_lies_among_shares_and_holds_it(found: tuple[int, int]) -> None:
    hits, count = found
    low, high = wilson(hits / count, count)
    assert 0.0 <= low <= hits / count <= high <= 1.0
    assert high - low > 0
    mirrored = wilson(1 - hits / count, count)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)


def test_it_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for hits, count, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson(hits / count, count) == pytest.approx((low, high), abs=5e-5)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=80))
def test_no_interval_of_a_figure_between_0_and_1_leaves_its_range(values: list[float]) -> None:
    array = np.array(values)
    for scale in ("fraction", "share"):
        side = estimate(array, scale)
        assert side.low is not None
        assert side.high is not None
        assert 0.0 <= side.low <= side.mean <= side.high <= 1.0
        moved = change(array - array[::-1], scale)
        assert moved.low is None or (moved.low >= -1.0 and moved.high <= 1.0)


def test_below_thirty_prompts_the_change_of_a_share_has_no_interval() -> None:
    moved = np.array([0.0, 1.0] * 15)
    assert change(moved, "share").low is not None
    assert change(moved[:-1], "share").low is None
    assert change(moved[:-1], "mean").low is not None
    assert change(np.zeros(29), "mean").low is None  # nobody moved: no certainty that nobody would
