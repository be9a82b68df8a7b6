"""Means and paired differences over held-out prompts, and measures of text that no mount uses.

All figures are float64. The unit of observation is the prompt: several answers to one prompt are
averaged first, since they are not independent. Each side's mean, and the mean of the prompts'
differences, has the standard error s / sqrt(P) (s with P - 1 in its denominator), a 95 % interval
from Student's t with P - 1 degrees of freedom, and the difference has z = mean / standard error.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

Floats = NDArray[np.float64]

# A word is a run of letters and digits; in scripts written without blanks (kana, Han, Hangul),
# each character counts as one.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[^\W_])+(?:['’](?![{_UNSPACED}])[^\W_]+)*")


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` prompts with its standard error and 95 % interval (None below two)."""

    n: int
    mean: float
    se: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Paired:
    """One measure before and after, over the prompts that have it on both sides."""

    before: Estimate
    after: Estimate
    diff: Estimate

    @property
    def z(self) -> float | None:
        """The difference in its own standard errors; None where there is no spread to divide by."""
        return self.diff.mean / self.diff.se if self.diff.se else None

    def above(self, errors: float) -> bool:
        """Whether the difference is more than `errors` of its standard errors above zero."""
        return self.diff.se is not None and self.diff.mean > errors * self.diff.se

    def below(self, errors: float) -> bool:
        """Whether the difference is more than `errors` of its standard errors below zero."""
        return self.diff.se is not None and self.diff.mean < -errors * self.diff.se


@functools.cache
def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t for which Student's distribution holds `confidence` between -t and t.

    With t = sqrt(freedom) tan(a), the distribution's mass up to t is proportional to the integral
    of cos(a)^(freedom - 1) (substitution in Abramowitz & Stegun 26.7.1), which is summed here on a
    fine grid: exact to 1e-3 or better for every `freedom` >= 1.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be 1 or more, got {freedom}")
    angles = np.linspace(0.0, math.pi / 2, 200_001)
    middles = (angles[1:] + angles[:-1]) / 2
    mass = np.concatenate(([0.0], np.cumsum(np.cos(middles) ** (freedom - 1))))
    angle = np.interp(confidence, mass / mass[-1], angles)
    return float(math.sqrt(freedom) * math.tan(angle))


def estimate(values: Floats) -> Estimate:
    """Mean, standard error and interval of `values`, (P,) float64, P >= 1, all finite."""
    count = len(values)
    mean = float(np.mean(values))
    if count < 2:
        return Estimate(count, mean, None, None, None)
    error = float(np.std(values, ddof=1) / math.sqrt(count))
    reach = t_quantile(count - 1) * error
    return Estimate(count, mean, error, mean - reach, mean + reach)


def by_prompt(prompt_ids: Sequence[str], values: Floats) -> dict[str, float]:
    """The mean of each prompt's rows, in order of first appearance.

    Args:
        prompt_ids: (R,) which prompt each row answers.
        values: (R,) float64; NaN where a row has no figure. A prompt with none is left out.
    """
    rows: dict[str, list[float]] = {}
    for prompt, value in zip(prompt_ids, values.tolist(), strict=True):
        if math.isfinite(value):
            rows.setdefault(prompt, []).append(value)
    return {prompt: math.fsum(found) / len(found) for prompt, found in rows.items()}


def paired(before: Mapping[str, float], after: Mapping[str, float]) -> Paired | None:
    """Compare prompt by prompt; None where no prompt has a figure on both sides."""
    prompts = [prompt for prompt in before if prompt in after]
    if not prompts:
        return None
    old = np.array([before[prompt] for prompt in prompts], dtype=np.float64)
    new = np.array([after[prompt] for prompt in prompts], dtype=np.float64)
    return Paired(estimate(old), estimate(new), estimate(new - old))


def words(text: str) -> list[str]:
    """The words of `text`, case folded; a character of an unspaced script is a word."""
    return _WORD.findall(text.casefold())


def repetition(text: str) -> float:
    """The share of word bigrams in `text` that stood there before: 1 - distinct / all.

    0 for a text of fewer than two words, 0 where every bigram is new, near 1 for a loop.
    """
    found = words(text)
    pairs = list(itertools.pairwise(found))
    return 1.0 - len(set(pairs)) / len(pairs) if pairs else 0.0


def similarity(answer: str, references: Sequence[str]) -> float | None:
    """How alike `answer` and its nearest reference are, by characters, in [0, 1].

    rapidfuzz's normalised Indel similarity, 2 LCS / (|answer| + |reference|), after runs of white
    space are made one blank. None where there is no reference that is not empty.
    """
    from rapidfuzz.distance import Indel

    known = [text for reference in references if (text := " ".join(reference.split()))]
    mine = " ".join(answer.split())
    if not known:
        return None
    return max(float(Indel.normalized_similarity(mine, text)) for text in known)
