"""Which texts a term hits, and where."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def hits(gate, text: str) -> list[tuple[str, int, int]]:
    return [(hit.term, hit.start, hit.end) for hit in gate._matcher.hits(text)]


def test_a_hit_says_what_and_where(gate, batch_of) -> None:
    result = gate(["best"]).score(batch_of(["This is the BEST lamp.", "A lamp."]))
    assert list(result.scores) == [0.0, 1.0]
    assert result.severity == ["veto", "none"]
    assert result.reasons == {0: '"best" at 12-16'}
    assert result.extras == {"hits": [1.0, 0.0]}


@pytest.mark.parametrize(
    "written",
    [
        "ＢＥＳＴ",
        "b\u200be\u200bs\u200bt",
        "be\u00adst",
        "B\ufe0fEST",
        "\u202ebest\u202c",
        "best\x00",
    ],
)
def test_disguises_are_caught_and_the_position_is_that_of_the_original(gate, written) -> None:
    text = f"the {written}, truly"
    ((term, start, end),) = hits(gate(["best"]), text)
    assert term == "best"
    assert "," not in text[start:end]
    assert text[start:end] in written
    assert text[:start].strip("\u202e ") == "the"


def test_the_list_is_normalised_as_the_text_is(gate) -> None:
    assert hits(gate(["Ｂest\u200b Ever"]), "best ever") == [("Ｂest\u200b Ever", 0, 9)]


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("ass", "class assess passage"),
        ("cunt", "Scunthorpe"),
        ("kill", "a skill that kills time"),
        ("best", "bestow the bestseller"),
        ("no. 1", "no. 10"),
        ("24", "1240"),
        ("мир", "кумир"),
    ],
)
def test_a_word_inside_another_word_passes(gate, term, text) -> None:
    assert hits(gate([term]), text) == []


@pytest.mark.parametrize(
    ("term", "text", "where"),
    [
        ("best", "(best)", (1, 5)),
        ("best", "_best_", (1, 5)),
        ("best", "best", (0, 4)),
        ("best", "the-best!", (4, 8)),
        ("best", "这是best产品", (2, 6)),
        ("100%", "100% safe", (0, 4)),
        ("#1", "we are #1", (7, 9)),
        ("最好", "这是最好的产品", (2, 4)),
        ("最好", "最\u200b好", (0, 3)),
        ("최고", "최고의 제품", (0, 2)),
        ("meilleur", "le MEILLEUR prix", (3, 11)),
    ],
)
def test_a_word_of_its_own_is_hit(gate, term, text, where) -> None:
    written = term.replace("#", "\\#")
    assert hits(gate([written]), text) == [(term, *where)]


@pytest.mark.parametrize("gap", [" ", "  ", "\n", "\t ", "\u00a0", "\u3000", " \u200b "])
def test_white_space_in_a_phrase_may_be_of_any_width(gate, gap) -> None:
    text = f"the lowest{gap}price here"
    assert hits(gate(["lowest price"]), text) == [("lowest price", 4, 15 + len(gap))]


def test_a_phrase_needs_white_space_where_it_has_some(gate) -> None:
    assert hits(gate(["lowest price"]), "the lowestprice, lowest-price") == []


def test_of_nested_terms_the_longest_is_reported(gate) -> None:
    assert hits(gate(["best", "the best", "best ever"]), "the best ever") == [
        ("the best", 0, 8),
        ("best ever", 4, 13),
    ]


def test_a_term_inside_an_allowed_one_is_no_hit(gate) -> None:
    built = gate(["kill", "best"], allow=["kill a process", "best before"])
    assert hits(built, "Kill a  process; best before May") == []
    assert hits(built, "kill a processor")[0] == ("kill", 0, 4)
    assert hits(built, "kill a process, then kill")[0] == ("kill", 21, 25)


def test_an_allowance_that_only_touches_a_term_does_not_cover_it(gate) -> None:
    built = gate(["best price ever"], allow=["the best price"])
    assert hits(built, "the best price ever") == [("best price ever", 4, 19)]


def test_a_term_on_both_lists_is_allowed(gate) -> None:
    assert hits(gate(["best", "worst"], allow=["BEST"]), "best and worst") == [("worst", 9, 14)]


def test_many_hits_are_counted_and_the_first_ones_named(gate, batch_of) -> None:
    result = gate(["a1", "b2"]).score(batch_of(["a1 b2 a1 b2 a1"]))
    assert result.reasons[0] == '"a1" at 0-2, "b2" at 3-5, "a1" at 6-8 and 2 more'
    assert result.extras["hits"] == [5.0]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_chinese_term_is_found_in_any_company_at_its_place(gate, before, after) -> None:
    text = f"{before} 最好。{after}"
    place = (len(before) + 1, len(before) + 3)
    assert ("最好", *place) in hits(gate(["最好"]), text)


def test_rows_do_not_depend_on_order_or_company(gate, batch_of) -> None:
    responses = ["best", "", "fine", "ｂｅｓｔ buy", "\ud800 best", "x" * 10_000]
    built = gate(["best"])
    together = built.score(batch_of(responses))
    backwards = built.score(batch_of(responses).take(range(5, -1, -1)))
    assert list(together.scores) == [0, 1, 1, 0, 0, 1]
    assert list(backwards.scores) == list(together.scores)[::-1]
    assert list(backwards.severity) == list(together.severity)[::-1]
