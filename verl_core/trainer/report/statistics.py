"""Means and paired differences over held-out prompts, and measures of text that no mount uses.

All figures are float64. The unit of observation is the prompt: several answers to one prompt are
averaged first, since they are not independent. Each side's mean, and the mean of the prompts'
differences, has the standard error s / sqrt(P) (s with P - 1 in its denominator), a 95 % interval
from Student's t with P - 1 degrees of freedom, and the difference has z = mean / standard error.

Figures that lie in [0, 1] have intervals that do so too. The share of answers of which something is
true has Wilson's score interval (Wilson 1927, with P for the count: the prompts, also where each
has several answers, which makes it wider than it need be). A mean of fractions keeps Student's,
clipped. Differences of either are clipped to [-1, 1]. Below `FEW` prompts the difference of a share
has none: it moves in steps of 1 / P, and where no prompt moved, of any figure, the spread is 0,
which is no certainty.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

FEW = 30
"""Below so many prompts the change of a share, or of what did not move at all, has no interval."""

TOO_FEW = "too few prompts to tell"
"""What stands where such an interval would."""

Scale = Literal["mean", "fraction", "share"]
"""What a figure is: a number of any size, one in [0, 1], or whether something is true (0 or 1)."""

Floats = NDArray[np.float64]

# A word is a run of letters and digits; in scripts written without blanks (kana, Han, Hangul),
# each character counts as one.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[^\W_])+(?:['’](?![{_UNSPACED}])[^\W_]+)*")


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` prompts with its standard error and 95 % interval (None where it has none,
    as below two prompts)."""

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


def estimate(values: Floats, scale: Scale = "mean") -> Estimate:
    """Mean, standard error and interval of `values`, (P,) float64, P >= 1, all finite."""
    count = len(values)
    mean = float(np.mean(values))
    if count < 2:
        return Estimate(count, mean, None, None, None)
    error = float(np.std(values, ddof=1) / math.sqrt(count))
    if scale == "share":
        return Estimate(count, mean, error, *wilson(mean, count))
    reach = t_quantile(count - 1) * error
    found = Estimate(count, mean, error, mean - reach, mean + reach)
    return found if scale == "mean" else _clipped(found, 0.0, 1.0)


def wilson(share: float, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval of a `share` in [0, 1] among `count` >= 1; it lies in [0, 1]."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    spread = z * z / count
    middle = (share + spread / 2) / (1 + spread)
    reach = math.sqrt(spread * share * (1 - share) + spread * spread / 4) / (1 + spread)
    # Rounding leaves about 1e-17 where the share is 0 or 1.
    low = 0.0 if share == 0 else max(middle - reach, 0.0)
    return low, 1.0 if share == 1 else min(middle + reach, 1.0)


def change(differences: Floats, scale: Scale = "mean") -> Estimate:
    """`estimate` of prompts' differences: in [-1, 1] for a share, no interval below `FEW`."""
    found = estimate(differences)
    if found.n < FEW and (scale == "share" or not found.se):
        return replace(found, low=None, high=None)
    return found if scale == "mean" else _clipped(found, -1.0, 1.0)


def _clipped(found: Estimate, least: float, most: float) -> Estimate:
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(found.low, least), high=min(found.high, most))


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


def paired(
    before: Mapping[str, float], after: Mapping[str, float], scale: Scale = "mean"
) -> Paired | None:
    """Compare prompt by prompt; None where no prompt has a figure on both sides."""
    prompts = [prompt for prompt in before if prompt in after]
    if not prompts:
        return None
    old = np.array([before[prompt] for prompt in prompts], dtype=np.float64)
    new = np.array([after[prompt] for prompt in prompts], dtype=np.float64)
    return Paired(estimate(old, scale), estimate(new, scale), change(new - old, scale))


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
