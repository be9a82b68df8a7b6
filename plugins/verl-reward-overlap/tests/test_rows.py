"""What becomes of rows without a reference, without a response, or with odd data."""

from __future__ import annotations

import numpy as np
import pytest

from verl_reward_overlap import Bleu, Chrf, Rouge
from verl_reward_overlap.references import UnusableReference, references_of
from verl_reward_sdk import ProviderError, RewardBatch

every = pytest.mark.parametrize("provider", [Bleu, Chrf, Rouge])


@every
@pytest.mark.parametrize("cell", [None, "", " \n\t", [], [None, ""], np.array([], dtype=object)])
def test_a_row_without_a_reference_abstains_with_the_reason(make, batch_of, provider, cell) -> None:
    result = make(provider).score(batch_of(["fine", "fine"], [cell, "fine"]))
    assert list(result.present) == [False, True]
    assert result.reasons[0] == "no reference: column 'ground_truth' is empty"
    assert 1 not in result.reasons


@every
@pytest.mark.parametrize("response", ["", "   ", "\n"])
def test_an_empty_response_is_a_bad_response_and_no_abstention(
    make, batch_of, provider, response
) -> None:
    result = make(provider).score(batch_of([response], ["a reference"]))
    assert list(result.present) == [True]
    assert result.scores[0] == 0.0


@every
@pytest.mark.parametrize(
    ("cell", "said"), [(42, "42 (int)"), (["ok", 3.5], "3.5 (float) at [1]"), ({"a": 1}, "(dict)")]
)
def test_a_reference_that_is_no_text_fails_its_row_and_no_other(
    make, batch_of, provider, cell, said
) -> None:
    result = make(provider).score(batch_of(["x y", "x y"], [cell, "x y"]))
    assert set(result.failures) == {0}
    assert "column 'ground_truth' holds" in result.failures[0]
    assert said in result.failures[0]
    assert result.scores[1] > 0


@every
def test_the_answer_keeps_the_contract(make, batch_of, provider) -> None:
    built = make(provider)
    cells = ["a cat sat here", None, 7, ["猫", "a cat"]]
    result = built.score(batch_of(["a cat sat here"] * 4, cells))
    scores, scored = result.checked(provider=built.name, n=4, score_range=built.score_range)
    assert list(scored) == [True, False, False, True]
    assert np.isnan(scores[1])


@every
def test_blank_entries_among_several_references_are_left_out(make, batch_of, provider) -> None:
    built = make(provider)
    both = built.score(batch_of(["the cat"] * 2, [["", "the cat sat", None], "the cat sat"]))
    assert both.scores[0] == both.scores[1]


def test_references_come_from_texts_lists_tuples_and_arrays() -> None:
    assert references_of("a") == ("a",)
    assert references_of(("a", "b")) == ("a", "b")
    assert references_of(np.array(["a", "b"], dtype=object)) == ("a", "b")
    with pytest.raises(UnusableReference, match=r"\.\.\. \(bytes\), expected"):
        references_of(b"x" * 100)


@every
def test_the_reference_column_can_be_named(make, provider) -> None:
    built = make(provider, reference="gold")
    assert built.reads == {"gold"}
    batch = RewardBatch(
        sample_ids=["a"], prompts=["p"], responses=["the cat"], columns={"gold": ["the cat"]}
    )
    assert built.score(batch).scores[0] == 1.0


@every
def test_a_missing_column_is_named_with_the_nearest_one(make, batch_of, provider) -> None:
    built = make(provider, reference="ground_thruth")
    with pytest.raises(ProviderError, match=r"'ground_thruth'.*did you mean 'ground_truth'"):
        built.score(batch_of(["x"], ["x"]))


def test_rouge_says_when_it_cannot_see_the_reference(make, batch_of) -> None:
    result = make(Rouge).score(batch_of(["猫在这里", "a cat"], ["猫在这里", "a cat"]))
    assert list(result.scores) == [0.0, 1.0]
    assert "a-z and 0-9" in result.reasons[0]
    assert 1 not in result.reasons


@every
def test_odd_text_is_scored_like_any_other(make, batch_of, provider) -> None:
    odd = ["\x00\x01", "\ud800", "e\u0301\u200b", "🙂" * 50, "\u202eabc", "<skipped>", "&lt;"]
    built = make(provider)
    result = built.score(batch_of(odd, ["reference"] * len(odd)))
    built.score(batch_of(["response"] * len(odd), odd))
    assert result.checked(provider="x", n=len(odd), score_range=(0.0, 1.0))[1].all()


@every
def test_an_empty_batch_has_an_empty_answer(make, batch_of, provider) -> None:
    assert len(make(provider).score(batch_of([], [])).scores) == 0
