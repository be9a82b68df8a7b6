"""The gate ``safety``: one word a row, and where the forbidden term stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ConfigDict

from verl_reward_safety.matcher import Hit, Matcher
from verl_reward_safety.wordlist import read_terms
from verl_reward_sdk import (
    AssetPath,
    ProviderConfig,
    RewardBatch,
    RewardProvider,
    RewardResult,
    Severity,
)

#: Hits that a reason spells out; the rest are counted.
SHOWN = 3


class SafetyConfig(ProviderConfig):
    """Which words, and how grave one is."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    words: AssetPath
    """The list of forbidden terms: UTF-8, one a line, ``#`` begins a comment."""

    allow: AssetPath | None = None
    """A list of the same form: a forbidden term inside one of these is no hit."""

    severity: Literal["penalty", "veto", "skip"] = "veto"
    """What the gate says about a row with a hit."""


class Safety(RewardProvider[SafetyConfig]):
    """A gate that looks for forbidden words and phrases, and says where they stand.

    Scores 1 for a clean response and 0 for one with a hit. Lists and responses are normalised
    alike (NFKC, case, invisible characters, white space), so full-width letters or zero-width
    characters hide nothing; positions are those of the response as it was written.
    """

    name = "safety"
    role = "gate"
    score_range = (0.0, 1.0)

    def assets(self) -> tuple[Path, ...]:
        allow = self.config.allow
        return (self.config.words,) if allow is None else (self.config.words, allow)

    def setup(self) -> None:
        allow = self.config.allow
        self._matcher = Matcher(
            forbidden=read_terms(self.config.words),
            allowed=() if allow is None else read_terms(allow),
        )

    def score(self, batch: RewardBatch) -> RewardResult:
        found = [self._matcher.hits(response) for response in batch.responses]
        severity: list[Severity | bool | None] = [
            self.config.severity if hits else "none" for hits in found
        ]
        return RewardResult(
            scores=np.array([0.0 if hits else 1.0 for hits in found], dtype=np.float64),
            reasons={row: _reason(hits) for row, hits in enumerate(found) if hits},
            severity=severity,
            extras={"hits": [float(len(hits)) for hits in found]},
        )


def _reason(hits: Sequence[Hit]) -> str:
    shown = ", ".join(f'"{hit.term}" at {hit.start}-{hit.end}' for hit in hits[:SHOWN])
    rest = len(hits) - SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown
