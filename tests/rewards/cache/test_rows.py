"""Cached scores: which rows are asked about, what is kept of an answer, and what comes back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rewards.cache.conftest import SCOPE, answer, batch, score_all
from verl_core.rewards.cache import RowCache
from verl_core.rewards.statuses import ABSTAINED, FAILED, OK, PENALTY, VETO
from verl_core.rewards.tokens import Spans


def test_a_row_is_scored_once_and_its_score_keeps_all_bits(make: Any) -> None:
    cache, asked = make(), []
    values = {"a": 0.1 + 0.2, "b": -0.0, "c": 5e-324, "d": 1.7976931348623157e308}

    def score(text: str) -> float:
        asked.append(text)
        return values[text]

    first = score_all(cache, batch(*values), score)
    again = score_all(cache, batch(*reversed(values)), score)
    assert asked == list(values)
    assert again.scores.tobytes() == first.scores[::-1].tobytes()
    assert again.ok.all()
    figures = cache.figures()
    assert (figures.rows, figures.hits, figures.kept, figures.unkeyed) == (8, 4, 4, 0)


def test_rows_of_one_content_are_asked_about_once(make: Any) -> None:
    cache = make()
    split = cache.split(batch("a", "b", "a", "c", "b"), SCOPE)
    assert split.ask.tolist() == [0, 1, 3]
    assert split.hit_rate == pytest.approx(0.4)
    fresh = answer([1.0, 2.0, math.nan], [OK, OK, FAILED], reasons={1: "two", 2: "broke"})
    joined, _ = split.joined(fresh)
    assert joined.scores.tolist()[:3] == [1.0, 2.0, 1.0]
    assert joined.codes.tolist() == [OK, OK, OK, FAILED, OK]
    assert joined.reasons == {1: "two", 4: "two", 3: "broke"}


def test_everything_that_a_provider_said_comes_back(make: Any) -> None:
    cache = make()
    spans = Spans(np.array([0, 2]), np.array([2, 5]), np.array([0.1, 0.2]))
    tokens = [np.array([0.25, -0.0, 1 / 3]), spans, None]
    fresh = answer(
        [0.5, 0.3, 1.0],
        words=np.array([0, PENALTY, VETO], dtype=np.int8),
        reasons={1: "说了“不”\n\x00"},
        extras={"length": np.array([3.0, math.nan, math.inf])},
        seconds=2.0,
    )
    rows = batch("a", "b", "c")
    split = cache.split(rows, SCOPE)
    cache.put(split, fresh, tokens)

    new = batch("c", "d", "b", "a")
    split = cache.split(new, SCOPE)
    assert split.ask.tolist() == [1]
    joined, back = split.joined(answer([9.0], extras={"other": np.array([1.0])}, seconds=0.5))
    assert joined.scores.tolist() == [1.0, 9.0, 0.3, 0.5]
    assert joined.words is not None
    assert joined.words.tolist() == [VETO, 0, PENALTY, 0]
    assert joined.reasons == {2: "说了“不”\n\x00"}
    assert np.array_equal(
        joined.extras["length"], [math.inf, math.nan, math.nan, 3.0], equal_nan=True
    )
    assert np.array_equal(joined.extras["other"], [np.nan, 1, np.nan, np.nan], equal_nan=True)
    assert joined.seconds == 0.5
    assert back is not None
    assert back[:2] == [None, None]
    assert (back[2].starts.tolist(), back[2].ends.tolist()) == ([0, 2], [2, 5])
    assert back[2].scores.tolist() == [0.1, 0.2]
    assert back[3].tobytes() == tokens[0].tobytes()


def test_a_batch_that_is_all_known_asks_nobody(make: Any) -> None:
    cache = make()
    score_all(cache, batch("a", "b"), lambda text: 1.0)
    split = cache.split(batch("b", "a"), SCOPE)
    assert split.hit_rate == 1.0
    joined, tokens = split.joined(None)
    assert joined.scores.tolist() == [1.0, 1.0]
    assert (joined.words, tokens, joined.seconds) == (None, None, 0.0)


def test_an_empty_batch_has_no_hit_rate(make: Any) -> None:
    split = make().split(batch(), SCOPE)
    assert (split.hit_rate, len(split.ask)) == (0.0, 0)
    assert len(split.joined(None)[0].scores) == 0


def test_failures_and_abstentions_are_never_kept(make: Any) -> None:
    cache, rows = make(), batch("ok", "failed", "abstained")
    split = cache.split(rows, SCOPE)
    cache.put(split, answer([1.0, math.nan, math.nan], [OK, FAILED, ABSTAINED]))
    assert cache.split(rows, SCOPE).ask.tolist() == [1, 2]
    assert cache.figures().kept == 1


def test_rows_with_odd_values_are_asked_about_every_time(make: Any) -> None:
    cache = make()
    rows = batch("a", "a", "b", columns={"extra": [object(), object(), 1]})
    for ask in ([0, 1, 2], [0, 1]):
        split = cache.split(rows, SCOPE)
        assert split.ask.tolist() == ask
        cache.put(split, answer([1.0] * len(ask)))
    assert cache.figures().unkeyed == 4


def test_another_generation_hits_nothing_of_the_old_one(make: Any) -> None:
    cache, rows = make(), batch("a")
    cache.put(cache.split(rows, b"generation 1"), answer([1.0]))
    assert len(cache.split(rows, b"generation 2").ask) == 1
    cache.put(cache.split(rows, b"generation 2"), answer([2.0]))
    # A lease that still holds the old one gets the old one's score.
    assert cache.split(rows, b"generation 1").joined(None)[0].scores.tolist() == [1.0]
    assert cache.split(rows, b"generation 2").joined(None)[0].scores.tolist() == [2.0]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=12), max_size=8),
    bound=st.integers(1, 12),
)
def test_a_cache_never_changes_a_score(texts: list[list[str]], bound: int) -> None:
    cache = RowCache(bound)
    for some in texts:
        got = score_all(cache, batch(*some), lambda text: ord(text) / 7)
        assert got.scores.tolist() == [ord(text) / 7 for text in some]
        assert cache.figures().kept <= bound


def test_a_closed_cache_knows_nothing(make: Any) -> None:
    cache = make()
    score_all(cache, batch("a"), lambda text: 1.0)
    cache.close()
    assert cache.split(batch("a"), SCOPE).hit_rate == 0.0
