"""Scores are those of sacrebleu and rouge-score, on every kind of text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from verl_reward_overlap import Bleu, Chrf, Rouge

few = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
words = st.lists(
    st.sampled_from(["the", "cat", "sat", "on", "Mats", "running", "3.5", "&amp;", "猫", "é", "."]),
    max_size=12,
).map(" ".join)
texts = st.one_of(words, st.text(max_size=30))
references = st.lists(texts.filter(lambda text: bool(text.strip())), min_size=1, max_size=3)

BLEU_OPTIONS: list[dict[str, Any]] = [
    {},
    {"lowercase": True, "tokenize": "zh"},
    {"tokenize": "intl", "smooth_method": "floor"},
    {"tokenize": "char", "smooth_method": "add-k", "smooth_value": 0.5},
    {"tokenize": "none", "smooth_method": "none"},
    {"use_effective_order": False},
]
CHRF_OPTIONS: list[dict[str, Any]] = [
    {},
    {"word_order": 2, "beta": 3},
    {"char_order": 4, "remove_whitespace": False, "eps_smoothing": True},
]


@pytest.mark.parametrize("options", BLEU_OPTIONS, ids=str)
@few
@given(response=texts, refs=references)
def test_bleu_equals_sentence_bleu(make, batch_of, options, response, refs) -> None:
    result = make(Bleu, **options).score(batch_of([response], [refs]))
    expected = sacrebleu.sentence_bleu(response, refs, **options).score / 100
    assert result.scores[0] == pytest.approx(expected, abs=1e-12)
    assert 0 <= result.scores[0] <= 1


@pytest.mark.parametrize("options", CHRF_OPTIONS, ids=str)
@few
@given(response=texts, refs=references)
def test_chrf_equals_sentence_chrf(make, batch_of, options, response, refs) -> None:
    result = make(Chrf, **options).score(batch_of([response], [refs]))
    assert result.scores[0] == sacrebleu.sentence_chrf(response, refs, **options).score / 100
    assert 0 <= result.scores[0] <= 1


@pytest.mark.parametrize("variant", ["rouge1", "rouge2", "rougeL", "rougeLsum"])
@pytest.mark.parametrize("use_stemmer", [False, True])
@few
@given(response=texts, refs=references)
def test_rouge_equals_rouge_score(make, batch_of, variant, use_stemmer, response, refs) -> None:
    best = RougeScorer([variant], use_stemmer=use_stemmer).score_multi(refs, response)[variant]
    for measure, expected in zip("prf", best, strict=True):
        rouge = make(Rouge, variant=variant, use_stemmer=use_stemmer, measure=measure)
        assert rouge.score(batch_of([response], [refs])).scores[0] == expected


def test_rouge_takes_the_reference_with_the_best_f_measure(make, batch_of) -> None:
    refs = ["the cat", "the cat sat on the mat"]
    scorer = RougeScorer(["rougeL"])
    single = [scorer.score(ref, "the cat sat")["rougeL"].fmeasure for ref in refs]
    score = make(Rouge).score(batch_of(["the cat sat"], [refs])).scores[0]
    assert score == max(single)
    assert single[0] != single[1]


@pytest.mark.parametrize("provider", [Bleu, Chrf, Rouge])
def test_a_response_that_repeats_its_reference_scores_one(make, batch_of, provider) -> None:
    text = "The lamp costs 24 euros and ships within two days."
    assert make(provider).score(batch_of([text], [text])).scores[0] == 1.0


@pytest.mark.parametrize("provider", [Bleu, Chrf, Rouge])
def test_scores_do_not_depend_on_order_or_company(make, batch_of, provider) -> None:
    responses = ["the cat sat", "a dog", "", "the cat sat on the mat", "猫在垫子上"]
    refs: list[Any] = [
        "the cat sat on a mat",
        ["a dog ran", "the dog"],
        "x",
        "the cat sat on a mat",
        "猫",
    ]
    order = [3, 0, 4, 2, 1]
    together = np.asarray(make(provider).score(batch_of(responses, refs)).scores)
    shuffled = np.asarray(make(provider).score(batch_of(responses, refs).take(order)).scores)
    alone = [make(provider).score(batch_of([responses[i]], [refs[i]])).scores[0] for i in range(5)]
    assert np.array_equal(together[order], shuffled)
    assert np.array_equal(together, alone)
