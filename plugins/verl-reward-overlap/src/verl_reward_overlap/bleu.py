"""``bleu``: sacrebleu's sentence BLEU, divided by 100."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from verl_reward_overlap.provider import CACHED_REFERENCES, OverlapConfig, OverlapProvider

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


class BleuConfig(OverlapConfig):
    """Options and defaults are those of ``sacrebleu.sentence_bleu``."""

    smooth_method: Literal["exp", "floor", "add-k", "none"] = "exp"
    """How an n-gram order without a match is smoothed."""

    smooth_value: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The value of ``floor`` (at most 1; 0.1 if left out) or ``add-k`` (1 if left out)."""

    lowercase: bool = False
    """Compare without regard to upper and lower case."""

    tokenize: Literal["13a", "intl", "zh", "char", "none"] = "13a"
    """sacrebleu's tokenizer: ``13a`` for European languages, ``zh`` for Chinese."""

    use_effective_order: bool = True
    """Leave out the n-gram orders that a short response cannot have."""

    @model_validator(mode="after")
    def _smooth_value_fits_its_method(self) -> BleuConfig:
        if self.smooth_value is None:
            return self
        if self.smooth_method not in ("floor", "add-k"):
            raise ValueError(
                f"smooth_value is for floor and add-k, but smooth_method is {self.smooth_method!r}"
            )
        if self.smooth_method == "floor" and self.smooth_value > 1:
            raise ValueError(f"smooth_value is {self.smooth_value:g}: floor takes at most 1")
        return self


class Bleu(OverlapProvider[BleuConfig]):
    """Sentence BLEU against one or several references, in [0, 1] (sacrebleu).

    Papineni et al. (2002), doi:10.3115/1073083.1073135; the score equals
    ``sacrebleu.sentence_bleu(response, references).score / 100``.
    """

    name = "bleu"

    def setup(self) -> None:
        from sacrebleu.metrics.bleu import BLEU

        def prepared(references: tuple[str, ...]) -> BLEU:
            # A metric object that holds its references counts their n-grams once, however many
            # responses of a group are compared with them.
            return BLEU(
                lowercase=self.config.lowercase,
                tokenize=self.config.tokenize,
                smooth_method=self.config.smooth_method,
                smooth_value=self.config.smooth_value,
                effective_order=self.config.use_effective_order,
                references=[[reference] for reference in references],
            )

        self._prepared = lru_cache(maxsize=CACHED_REFERENCES)(prepared)

    def similarity(self, response: str, references: tuple[str, ...]) -> float:
        # A corpus of one sentence is that sentence: the same statistics, the same formula.
        score: float = self._prepared(references).corpus_score([response], None).score
        # exp(log(100)) is 100.00000000000004: the last bits of a perfect match are rounding.
        return min(score / 100.0, 1.0)
