"""What a provider answers: one score a row, or the reason why there is none."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from verl_reward_sdk.cells import (
    check_mapping,
    check_name,
    column,
    flags,
    numbers,
    shown,
    texts,
    unmasked,
)
from verl_reward_sdk.errors import ContractError

Severity = Literal["none", "penalty", "veto", "skip"]
SEVERITIES: tuple[str, ...] = get_args(Severity)


_FLOAT = frozenset({float})


def plain_scores(
    answer: object, n: int, score_range: tuple[float, float]
) -> npt.NDArray[np.float64] | None:
    """(n,) float64 of an answer that is a list of n floats, all finite and in range, as most are;
    None for any other, which `RewardResult.of` and `checked` read or refuse."""
    if type(answer) is not list or len(answer) != n or not n or set(map(type, answer)) != _FLOAT:
        return None
    scores = np.array(answer)
    low, high = score_range
    least, greatest = float(scores.min()), float(scores.max())
    largest = sys.float_info.max
    # NaN is not in any range.
    return scores if max(low, -largest) <= least and greatest <= min(high, largest) else None


@dataclass(frozen=True, eq=False)
class RewardResult:
    """Scores of B rows.

    Args:
        scores: (B,) float64, or a sequence (or object array) of ``float | None``: None is an
            abstention, NaN an error, a bool 0 or 1. Nothing else is taken for a number: no complex
            one, no time, no digits in a text, no Decimal. The value of a row that is not present
            does not matter.
        present: (B,) bool (or 0 and 1); False is an abstention: no knowledge about this row. It is
            never a zero, and never a verdict on a bad response. None: every row is present.
        failures: row -> why it could not be scored, a text. Such a row carries no score.
        reasons: row -> why it abstained, or what the provider saw: a text, or None for nothing.
        token_scores: one entry a row, either (T,) values along ``response_ids`` or character
            spans ``(start, end, score)``; they sum to the row's score.
        severity: for gates, ``none | penalty | veto | skip`` a row; a bool means veto or none.
        extras: more numeric columns to log, (B,) each, NaN where there is no value; their names
            are texts that UTF-8 can hold.

    numpy's masked arrays may stand for any column, and what their mask hides is never read: a
    masked score, or a masked entry of `present`, is an abstention, a masked entry of `extras` is
    NaN. Masked `token_scores` are refused: a row that has none says None.
    """

    scores: npt.ArrayLike | Sequence[float | None]
    present: npt.ArrayLike | None = None
    failures: Mapping[int, str] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    token_scores: Sequence[Any] | None = None
    severity: Sequence[Severity | bool | None] | None = None
    extras: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: object, *, provider: str) -> RewardResult:
        """`answer` as a RewardResult: itself (with NaN for what is masked in its `extras`, without
        reasons that are None), or of a sequence of ``float | None``.

        Raises:
            ContractError: it is neither, or an element is no number.
        """
        if isinstance(answer, cls):
            return answer._plain()
        if isinstance(answer, np.ndarray):
            return cls(scores=answer)
        if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Sequence):
            raise ContractError(
                "the answer is no sequence of scores",
                provider=provider,
                value=type(answer).__name__,
                bound="RewardResult or a sequence of float | None",
            )
        values, present = numbers(answer, "scores", provider)
        return cls(scores=values, present=None if present.all() else present)

    def checked(
        self, *, provider: str, n: int, score_range: tuple[float, float]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """``(scores, scored)``, both (n,), once every promise of the contract is seen to hold.

        `scored` is True where the row carries a score: present and not failed. Values elsewhere
        are NaN, so that no one can mistake them for a score.

        Raises:
            ContractError: wrong length, a value that is no number, not finite or outside
                `score_range`, an unknown severity, a row number that is not in the batch, or a
                reason that is no text. Never clamped, padded or broadcast to fit.
        """
        scores, scored = column(self.scores, n, "scores", provider)
        if self.present is not None:
            scored &= flags(self.present, n, "present", provider)
        failures, _ = self.told(provider=provider, n=n)
        for row in failures:
            scored[row] = False
        _check_values(scores, scored, score_range, provider)
        self._check_sides(provider, n, scored)
        scores[~scored] = np.nan
        return scores, scored

    def told(self, *, provider: str, n: int) -> tuple[dict[int, str], dict[int, str]]:
        """``(failures, reasons)`` as plain dicts: row numbers of n rows, and texts.

        Raises:
            ContractError: a row that is not in the batch, or what is no text.
        """
        failures = texts(self.failures, n, "failures", provider)
        return failures, texts(self.reasons, n, "reasons", provider, or_none=True)

    def _plain(self) -> RewardResult:
        """Itself, or with NaN where a mask hides a value of `extras`, and without reasons that are
        None."""
        plain: dict[str, Any] = {}
        if isinstance(self.extras, Mapping):
            extras = {name: unmasked(values) for name, values in self.extras.items()}
            if any(extras[name] is not values for name, values in self.extras.items()):
                plain["extras"] = extras
        if isinstance(self.reasons, Mapping) and any(t is None for t in self.reasons.values()):
            plain["reasons"] = {row: t for row, t in self.reasons.items() if t is not None}
        return replace(self, **plain) if plain else self

    def _check_sides(self, provider: str, n: int, scored: npt.NDArray[np.bool_]) -> None:
        check_mapping(self.extras, "extras", provider)
        for name, values in self.extras.items():
            check_name(name, provider)
            column(values, n, f"extras[{name!r}]", provider)
        if self.token_scores is not None:
            if len(self.token_scores) != n:
                raise ContractError(
                    "token_scores has a wrong length",
                    provider=provider,
                    value=len(self.token_scores),
                    bound=f"{n} rows",
                )
            _check_tokens(self.token_scores, scored, provider)
        if self.severity is None:
            return
        if len(self.severity) != n:
            raise ContractError(
                "severity has a wrong length",
                provider=provider,
                value=len(self.severity),
                bound=f"{n} rows",
            )
        for row, word in enumerate(self.severity):
            if not (word is None or isinstance(word, (bool, np.bool_)) or word in SEVERITIES):
                raise ContractError(
                    "unknown severity",
                    provider=provider,
                    row=row,
                    value=shown(word),
                    bound=" | ".join(SEVERITIES),
                )


def _check_tokens(
    token_scores: Sequence[Any], scored: npt.NDArray[np.bool_], provider: str
) -> None:
    """Refuse entries of scored rows that hide something or hold no numbers."""
    hidden = isinstance(token_scores, np.ma.MaskedArray)
    for row in np.flatnonzero(scored).tolist():
        entry = token_scores[row]
        if hidden or isinstance(entry, np.ma.MaskedArray):
            problem = "token scores that are masked"
        elif entry is None or _kind(entry) in "biuf":
            continue
        else:
            problem = "token scores of neither form"
        raise ContractError(
            problem,
            provider=provider,
            row=row,
            value=shown(entry),
            bound="(T,) numbers along response_ids, or spans (start, end, score)",
        )


def _kind(entry: Any) -> str:
    try:
        return np.asarray(entry).dtype.kind
    except Exception:  # noqa: BLE001  (a boundary: ragged, or somebody else's object)
        return "O"


def _check_values(
    scores: npt.NDArray[np.float64],
    scored: npt.NDArray[np.bool_],
    score_range: tuple[float, float],
    provider: str,
) -> None:
    low, high = score_range
    # Where the least and the greatest are well, all are; NaN is neither, nor is an infinity below
    # a bound that is one.
    if len(scores):
        least, greatest = float(scores.min()), float(scores.max())
        if max(low, -sys.float_info.max) <= least and greatest <= min(high, sys.float_info.max):
            return
    wrong = scored & ~((scores >= low) & (scores <= high) & np.isfinite(scores))
    if not wrong.any():
        return
    row = int(np.flatnonzero(wrong)[0])
    value = float(scores[row])
    if not math.isfinite(value):
        raise ContractError(
            "the score is not finite",
            provider=provider,
            row=row,
            value=value,
            bound="a finite number",
        )
    raise ContractError(
        "the score is outside score_range",
        provider=provider,
        row=row,
        value=value,
        bound=f"[{low:g}, {high:g}]",
    )
