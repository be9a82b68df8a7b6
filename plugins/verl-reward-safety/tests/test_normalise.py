"""Normalisation equals Unicode's, and every character finds its way back."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_reward_safety.invisible import INVISIBLE
from verl_reward_safety.normalise import _clusters, normalise

# Letters that compose, Hangul in pieces, half-width kana, ligatures, marks, Indic vowel signs.
composing = st.text(
    alphabet="aeǹ\u0301\u0323\u0300한\u1112\u1161\u11abカ\uff76\uff9e"
    "ﬁ㎏ᄒ\u09c7\u09be\u200b \u00a0İß"
)
texts = st.one_of(composing, st.text(max_size=40))


@settings(max_examples=300, deadline=None)
@given(texts)
def test_pieces_in_a_row_are_nfkc_of_the_whole(text) -> None:
    visible = "".join(c for c in text if c not in INVISIBLE)
    pieces = [unicodedata.normalize("NFKC", cluster) for cluster, _, _ in _clusters(text)]
    assert "".join(pieces) == unicodedata.normalize("NFKC", visible)


@settings(max_examples=300, deadline=None)
@given(texts)
def test_offsets_are_ordered_and_inside_the_text(text) -> None:
    normalised = normalise(text)
    assert len(normalised.text) == len(normalised.starts) == len(normalised.ends)
    assert list(normalised.starts) == sorted(normalised.starts)
    assert list(normalised.ends) == sorted(normalised.ends)
    for i in range(len(normalised.text)):
        start, end = normalised.span(i, i + 1)
        assert 0 <= start < end <= len(text)
        assert normalised.text[i] in normalise(text[start:end]).text


@settings(max_examples=300, deadline=None)
@given(texts)
def test_a_normalised_text_stays_as_it_is(text) -> None:
    once = normalise(text).text
    assert normalise(once).text == once


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=126), max_size=30))
def test_the_short_way_for_plain_text_gives_what_the_long_way_gives(text) -> None:
    # A trailing visible sign of another script forces the long way.
    short, long = normalise(text), normalise(text + "好")
    assert long.text == short.text + "好"
    assert list(long.starts)[:-1] == list(short.starts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ＢＥＳＴ", "best"),
        ("b\u200be\u00ads\u2060t", "best"),
        ("Straße", "strasse"),
        ("cafe\u0301", "café"),
        ("a\u3000\u00a0\n\tb", "a b"),
        ("ﬁrst", "first"),
        ("①", "1"),
        ("b\x00est", "best"),
        ("", ""),
        ("\u200b", ""),
    ],
)
def test_disguises_fall(text, expected) -> None:
    assert normalise(text).text == expected
