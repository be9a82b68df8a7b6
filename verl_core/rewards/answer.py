"""What one mount said about every row of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from verl_core.rewards.statuses import FAILED, NOT_APPLICABLE, OK, Codes
from verl_reward_sdk.protocols import Bools, Floats

if TYPE_CHECKING:
    from verl_core.rewards.tokens import TokenRow


@dataclass
class Answer:
    """One mount's column of B rows, as it was answered.

    Args:
        scores: (B,) float64 raw scores, NaN where there is none.
        codes: (B,) int8 of `verl_core.rewards.statuses`.
        words: (B,) int8 severities, or None where the provider gave none.
        reasons: row -> text.
        extras: name -> (B,) float64, NaN where the mount was not asked.
        seconds: how long the call was executed.
        error: what failed the whole call, if something did.
        unsure: (B,) bool: rows whose `when` or `only_if` had no answer, or None.
        token_scores: B entries as in `verl_core.rewards.tokens`, or None where no row has any.
        asked: rows that the mount had to answer, those that its cache knew included.
        hits: of them, rows that its cache knew; None where it has no cache.
    """

    scores: Floats
    codes: Codes
    words: Codes | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    extras: Mapping[str, Floats] = field(default_factory=dict)
    seconds: float = 0.0
    error: BaseException | None = None
    unsure: Bools | None = None
    token_scores: Sequence[TokenRow] | None = None
    asked: int = 0
    hits: int | None = None

    @classmethod
    def unasked(cls, n: int) -> Answer:
        """Of a mount that was asked about none of n rows."""
        return cls(np.full(n, np.nan), np.full(n, NOT_APPLICABLE, dtype=np.int8))

    @property
    def ok(self) -> Bools:
        """(B,) bool: the rows that carry a score."""
        rows: Bools = self.codes == OK
        return rows

    def failed_share(self) -> tuple[int, int]:
        """Failed rows, and the rows that were asked."""
        if not self.codes.any():  # all ok
            return 0, len(self.codes)
        asked = np.count_nonzero(self.codes != NOT_APPLICABLE)
        return int(np.count_nonzero(self.codes == FAILED)), int(asked)

    def first_reason(self) -> str:
        """Why its first failed row failed."""
        row = int(np.flatnonzero(self.codes == FAILED)[0])
        return self.reasons.get(row, "no reason given")
