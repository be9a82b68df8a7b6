"""``chrf``: sacrebleu's sentence chrF, divided by 100."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from pydantic import Field

from verl_reward_overlap.provider import CACHED_REFERENCES, OverlapConfig, OverlapProvider

if TYPE_CHECKING:
    from sacrebleu.metrics.chrf import CHRF


class ChrfConfig(OverlapConfig):
    """Options and defaults are those of ``sacrebleu.sentence_chrf``."""

    char_order: int = Field(default=6, ge=1, le=20)
    """The longest character n-gram that is counted."""

    word_order: int = Field(default=0, ge=0, le=10)
    """The longest word n-gram that is counted beside them; 2 makes it chrF++."""

    beta: int = Field(default=2, ge=1, le=100)
    """How much more recall weighs than precision."""

    remove_whitespace: bool = True
    """Count character n-grams across words, as if the text had no spaces."""

    eps_smoothing: bool = False
    """Smooth as chrF++.py, NLTK and Moses do."""


class Chrf(OverlapProvider[ChrfConfig]):
    """Character n-gram F-score against one or several references, in [0, 1] (sacrebleu).

    Popović (2015), doi:10.18653/v1/W15-3049; the score equals
    ``sacrebleu.sentence_chrf(response, references).score / 100``. Of several references the best
    one counts. It needs no tokenizer, so it serves Chinese and Japanese as they are.
    """

    name = "chrf"

    def setup(self) -> None:
        from sacrebleu.metrics.chrf import CHRF

        def prepared(references: tuple[str, ...]) -> CHRF:
            # As in bleu: the references' n-grams are counted once for a whole group.
            return CHRF(
                char_order=self.config.char_order,
                word_order=self.config.word_order,
                beta=self.config.beta,
                whitespace=not self.config.remove_whitespace,
                eps_smoothing=self.config.eps_smoothing,
                references=[[reference] for reference in references],
            )

        self._prepared = lru_cache(maxsize=CACHED_REFERENCES)(prepared)

    def similarity(self, response: str, references: tuple[str, ...]) -> float:
        score: float = self._prepared(references).corpus_score([response], None).score
        return score / 100.0
