"""``rouge``: ROUGE-1, 2, L and Lsum of rouge-score."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

from verl_reward_overlap.provider import CACHED_REFERENCES, OverlapConfig, OverlapProvider

_FIELD = {"f": "fmeasure", "p": "precision", "r": "recall"}


class RougeConfig(OverlapConfig):
    """Which ROUGE, and which of its three figures."""

    variant: Literal["rouge1", "rouge2", "rougeL", "rougeLsum"] = "rougeL"
    """Words, pairs of words, the longest common subsequence, or that one a line."""

    measure: Literal["f", "p", "r"] = "f"
    """F-measure, precision or recall."""

    use_stemmer: bool = False
    """Strip English word endings (Porter) before words are compared."""


class CachedTokenizer:
    """rouge-score's own tokenizer, which remembers the texts it has seen last.

    The reference of a group is met once a response; with the stemmer, cutting it into words is
    half of the work.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenize = lru_cache(maxsize=2 * CACHED_REFERENCES)(tokenizer.tokenize)


class Rouge(OverlapProvider[RougeConfig]):
    """ROUGE against one or several references, in [0, 1] (rouge-score).

    Lin (2004), aclanthology.org/W04-1013; the score equals
    ``RougeScorer([variant], use_stemmer).score_multi(references, response)``: of several
    references the one with the best F-measure counts, for precision and recall too.
    """

    name = "rouge"

    def setup(self) -> None:
        from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]
        from rouge_score.tokenizers import DefaultTokenizer  # type: ignore[import-untyped]

        self._tokenizer = CachedTokenizer(DefaultTokenizer(self.config.use_stemmer))
        self._scorer = RougeScorer([self.config.variant], tokenizer=self._tokenizer)

    def similarity(self, response: str, references: tuple[str, ...]) -> float:
        scores = self._scorer.score_multi(references, response)[self.config.variant]
        return float(getattr(scores, _FIELD[self.config.measure]))

    def remark(self, references: tuple[str, ...]) -> str | None:
        if any(self._tokenizer.tokenize(reference) for reference in references):
            return None
        return "rouge-score sees only a-z and 0-9, and the reference has neither: always 0"
