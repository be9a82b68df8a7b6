"""What the three measures share: a row's references in, one score in [0, 1] out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import ConfigDict, Field

from verl_reward_overlap.references import UnusableReference, references_of
from verl_reward_sdk import (
    ProviderConfig,
    ProviderError,
    RewardBatch,
    RewardProvider,
    RewardResult,
    did_you_mean,
)

#: Distinct reference sets whose prepared form is kept. A step holds a few: one a prompt.
CACHED_REFERENCES = 256


class OverlapConfig(ProviderConfig):
    """What every measure is told."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    reference: str = Field(default="ground_truth", min_length=1)
    """The data-set column that holds the reference answer: a text, or a list of texts."""


ConfigT = TypeVar("ConfigT", bound=OverlapConfig)


class OverlapProvider(RewardProvider[ConfigT]):
    """Compares each response with the references of its row.

    A row without a reference abstains: there is nothing to compare with. An empty response is a
    bad response and scores 0. A reference of another type than text is a fault of the data, so
    that row fails with the reason.
    """

    score_range = (0.0, 1.0)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.config.reference})

    def similarity(self, response: str, references: tuple[str, ...]) -> float:
        """The score of one response, in [0, 1]; `references` holds at least one text."""
        raise TypeError(f"{type(self).__name__} does not define similarity()")

    def remark(self, references: tuple[str, ...]) -> str | None:
        """What a reader of the score should know about these references, if anything."""
        return None

    def score(self, batch: RewardBatch) -> RewardResult:
        scores = np.zeros(len(batch), dtype=np.float64)
        present = np.ones(len(batch), dtype=bool)
        failures: dict[int, str] = {}
        reasons: dict[int, str] = {}
        for row, cell in enumerate(self._column(batch)):
            try:
                references = references_of(cell)
            except UnusableReference as error:
                failures[row] = f"column {self.config.reference!r} {error}"
                continue
            if not references:
                present[row] = False
                reasons[row] = f"no reference: column {self.config.reference!r} is empty"
                continue
            scores[row] = self.similarity(batch.responses[row], references)
            remark = self.remark(references)
            if remark is not None:
                reasons[row] = remark
        return RewardResult(scores=scores, present=present, failures=failures, reasons=reasons)

    def _column(self, batch: RewardBatch) -> Sequence[Any]:
        name = self.config.reference
        if name not in batch.columns:
            hint = did_you_mean(name, batch.columns) or "the batch has no columns"
            raise ProviderError(f"{self.name}: no column {name!r} in the batch ({hint})")
        return batch.columns[name]
