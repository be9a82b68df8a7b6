"""What a provider answers: one score a row, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from verl_reward_sdk.errors import ContractError

Severity = Literal["none", "penalty", "veto", "skip"]
SEVERITIES: tuple[str, ...] = get_args(Severity)


@dataclass(frozen=True, eq=False)
class RewardResult:
    """Scores of B rows.

    Args:
        scores: (B,) float64, or a sequence (or object array) of ``float | None``: None is an
            abstention, NaN an error. The value of a row that is not present does not matter.
        present: (B,) bool; False is an abstention: no knowledge about this row. It is never a
            zero, and never a verdict on a bad response. None: every row is present.
        failures: row -> why it could not be scored. Such a row carries no score.
        reasons: row -> why it abstained, or what the provider saw.
        token_scores: one entry a row, either (T,) values along ``response_ids`` or character
            spans ``(start, end, score)``; they sum to the row's score.
        severity: for gates, ``none | penalty | veto | skip`` a row; a bool means veto or none.
        extras: more numeric columns to log, (B,) each.
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
        """`answer` as a RewardResult: itself, or a sequence of ``float | None``.

        Raises:
            ContractError: it is neither, or an element is no number.
        """
        if isinstance(answer, cls):
            return answer
        if isinstance(answer, np.ndarray):
            return cls(scores=answer)
        if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Sequence):
            raise ContractError(
                "the answer is no sequence of scores",
                provider=provider,
                value=type(answer).__name__,
                bound="RewardResult or a sequence of float | None",
            )
        values, present = _numbers(answer, provider)
        return cls(scores=values, present=present)

    def checked(
        self, *, provider: str, n: int, score_range: tuple[float, float]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """``(scores, scored)``, both (n,), once every promise of the contract is seen to hold.

        `scored` is True where the row carries a score: present and not failed. Values elsewhere
        are NaN, so that no one can mistake them for a score.

        Raises:
            ContractError: wrong length, a value that is not finite or outside `score_range`, an
                unknown severity, or a row number that is not in the batch. Never clamped, padded
                or broadcast to fit.
        """
        scores, scored = _scores(self.scores, n, provider)
        if self.present is not None:
            scored &= _vector(self.present, n, "present", provider).astype(bool)
        for name, rows in (("failures", self.failures), ("reasons", self.reasons)):
            for row in rows:
                if not 0 <= row < n:
                    raise ContractError(
                        f"{name} names a row that is not in the batch",
                        provider=provider,
                        value=row,
                        bound=f"0 to {n - 1}",
                    )
        for row in self.failures:
            scored[row] = False
        _check_values(scores, scored, score_range, provider)
        self._check_sides(provider, n)
        scores[~scored] = np.nan
        return scores, scored

    def _check_sides(self, provider: str, n: int) -> None:
        for name, column in self.extras.items():
            _vector(column, n, f"extras[{name!r}]", provider)
        if self.token_scores is not None and len(self.token_scores) != n:
            raise ContractError(
                "token_scores has a wrong length",
                provider=provider,
                value=len(self.token_scores),
                bound=f"{n} rows",
            )
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
                    value=word,
                    bound=" | ".join(SEVERITIES),
                )


_PLAIN = frozenset({float, int, bool, np.float64, np.float32})
_PLAIN_OR_NONE = _PLAIN | {type(None)}


def _number(value: object, provider: str, row: int) -> float:
    if isinstance(value, (bool, np.bool_, int, float, np.number)):
        return float(value)
    raise ContractError(
        "the score is no number", provider=provider, row=row, value=value, bound="float | None"
    )


def _numbers(
    cells: Sequence[object] | npt.NDArray[np.object_], provider: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """``(values, present)`` of cells that are ``float | None``; a None is not present."""
    kinds = set(map(type, cells))
    if kinds <= _PLAIN:  # numpy converts them all at once, to the same bits
        return np.array(cells, dtype=np.float64), np.ones(len(cells), dtype=bool)
    if kinds <= _PLAIN_OR_NONE:
        known = np.array([cell is not None for cell in cells], dtype=bool)
        return np.where(known, np.array(cells, dtype=np.float64), 0.0), known
    values, present = np.zeros(len(cells)), np.ones(len(cells), dtype=bool)
    for row, cell in enumerate(cells):
        if cell is None:
            present[row] = False
        else:
            values[row] = _number(cell, provider, row)
    return values, present


def _scores(
    values: npt.ArrayLike | Sequence[float | None], n: int, provider: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    array = np.asarray(values)
    if array.dtype.kind == "O" and array.shape == (n,):
        return _numbers(array, provider)
    numbers = _vector(array, n, "scores", provider)
    return numbers.astype(np.float64, copy=True), np.ones(n, dtype=bool)


def _vector(values: npt.ArrayLike, n: int, name: str, provider: str) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.shape != (n,):
        raise ContractError(
            f"{name} has a wrong length",
            provider=provider,
            value=len(array) if array.ndim == 1 else array.shape,
            bound=f"{n} rows",
        )
    if array.dtype.kind not in "biuf":
        raise ContractError(f"{name} holds no numbers", provider=provider, value=str(array.dtype))
    return array


def _check_values(
    scores: npt.NDArray[np.float64],
    scored: npt.NDArray[np.bool_],
    score_range: tuple[float, float],
    provider: str,
) -> None:
    low, high = score_range
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
