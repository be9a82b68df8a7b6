"""One mount's answers on the slices of a step, laid into one answer on all rows as they come."""

from __future__ import annotations

import numpy as np

from verl_core.rewards.answer import Answer
from verl_core.rewards.mount import Rows
from verl_core.rewards.tokens import TokenRow
from verl_reward_sdk.protocols import Bools, Floats


class JoinedAnswer:
    """Of n rows; a row on which no slice has answered is as one that was not asked.

    `whole` is the answer so far. Its seconds are those of all calls together, its error that of
    the first slice, in the order of rows, which has one.
    """

    def __init__(self, n: int) -> None:
        self._extras: dict[str, Floats] = {}
        self._tokens: list[TokenRow] | None = None
        self.whole = Answer.unasked(n)
        self.whole.extras = self._extras
        self._error_at = n

    def take(self, answer: Answer, asked: Rows, rows: Rows, unsure: Bools | None) -> None:
        """Lay in a slice. What it costs does not depend on n.

        Args:
            answer: on the rows of the slice that were asked.
            asked: which they are, ascending.
            rows: of the slice, ascending.
            unsure: (len(rows),) bool, rows whose condition had no answer, or None.
        """
        whole, n = self.whole, len(self.whole.scores)
        whole.scores[asked] = answer.scores
        whole.codes[asked] = answer.codes
        if answer.words is not None:
            if whole.words is None:
                whole.words = np.zeros(n, dtype=np.int8)
            whole.words[asked] = answer.words
        for row, reason in answer.reasons.items():
            whole.reasons[int(asked[row])] = reason
        for name, values in answer.extras.items():
            if name not in self._extras:
                self._extras[name] = np.full(n, np.nan)
            self._extras[name][asked] = values
        if answer.token_scores is not None:
            if self._tokens is None:
                self._tokens = whole.token_scores = [None] * n
            for row, entry in zip(asked.tolist(), answer.token_scores, strict=True):
                self._tokens[row] = entry
        if unsure is not None:
            if whole.unsure is None:
                whole.unsure = np.zeros(n, dtype=bool)
            whole.unsure[rows] = unsure
        whole.seconds += answer.seconds
        whole.asked += answer.asked
        if answer.hits is not None:
            whole.hits = (whole.hits or 0) + answer.hits
        if answer.error is not None and rows[0] < self._error_at:
            whole.error, self._error_at = answer.error, int(rows[0])

    def of_rows(self, rows: Rows) -> Answer:
        """What conditions read of these rows: scores, codes and words."""
        whole = self.whole
        words = None if whole.words is None else whole.words[rows]
        return Answer(whole.scores[rows], whole.codes[rows], words)
