"""Token-level and process rewards: from a provider's `token_scores` to token-level rewards.

A score that stands for a character span lies on the span's last token, as process rewards do: the
reward of a reasoning step is given where the step ends (Shao et al., DeepSeekMath,
arXiv:2402.03300, section 4.1.3: ``index(j)`` is the end token of step j; Wang et al.,
Math-Shepherd, arXiv:2312.08935). Spread over the span it would reward a step's first tokens for
what is not yet written.

The scores of a token-level mount enter with the factor that its row's score enters the sum with
(scale x weight). Whatever is left of the fused reward (other mounts, a clip, a gate's penalty, the
score of a row that has no token scores) lies on the last token that the policy sampled, so that a
row's token-level rewards always add up to its fused reward. A veto replaces the fused reward, and
with it every token score of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from verl_core.rewards.offsets import Decode, Ints, token_offsets
from verl_reward_sdk.errors import ContractError, RewardError
from verl_reward_sdk.protocols import Bools, Floats

#: How far token scores may add up to something else than the row's score: this share of the
#: greater of the score and the sum of their absolute values (providers work in float32).
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Spans:
    """Scores of S parts of one response.

    Args:
        starts: (S,) int64, the first character.
        ends: (S,) int64, the one behind the last.
        scores: (S,) float64.
    """

    starts: Ints
    ends: Ints
    scores: Floats


TokenRow: TypeAlias = "Floats | Spans | None"
"""One row's token scores: (T,) float64 along `response_ids`, spans, or None for neither."""


# -- what a provider answered ----------------------------------------------------------------------


def checked_token_scores(
    token_scores: Sequence[Any],
    scores: Floats,
    scored: Bools,
    *,
    provider: str,
    responses: Sequence[str],
    response_ids: Sequence[npt.NDArray[np.int64]] | None,
) -> tuple[TokenRow, ...]:
    """B rows of token scores, once every promise of the contract is seen to hold.

    A row without a score has none, whatever stands there. Neither has a scored row whose entry is
    None, or which has no tokens: its score lies whole on the last token. An empty entry beside
    tokens is a row without spans, which adds up to 0.

    Args:
        token_scores: B entries as in `RewardResult`.
        scores: (B,) float64, checked.
        scored: (B,) bool, rows that carry a score.
        provider: what errors call it.
        responses: B texts.
        response_ids: B arrays (T,), or None: then no length can be checked.

    Raises:
        ContractError: an entry is neither of the two forms; its length is not T; a span lies
            outside the response or ends before it starts; a value is not finite; the values do not
            add up to the row's score (`SUM_TOLERANCE`).
    """
    rows: list[TokenRow] = [None] * len(scored)
    for row in np.flatnonzero(scored).tolist():
        if token_scores[row] is not None:
            length = None if response_ids is None else len(response_ids[row])
            rows[row] = _entry(token_scores[row], row, provider, responses[row], length)
    _check_values(rows, scores, provider)
    return tuple(rows)


def _entry(entry: Any, row: int, provider: str, response: str, length: int | None) -> TokenRow:
    try:
        array = np.asarray(entry)
    except (TypeError, ValueError):  # ragged, or on another device
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf" or not (array.ndim == 1 or array.shape[1:] == (3,)):
        raise ContractError(
            "token scores of neither form",
            provider=provider,
            row=row,
            value=entry,
            bound="(T,) numbers along response_ids, or spans (start, end, score)",
        )
    if array.ndim == 2:
        return _spans(array.astype(np.float64), row, provider, len(response))
    if len(array) == 0:
        return None if length == 0 else _spans(np.zeros((0, 3)), row, provider, len(response))
    if length is not None and len(array) != length:
        raise ContractError(
            "token scores of a wrong length",
            provider=provider,
            row=row,
            value=len(array),
            bound=f"{length}, one a token of response_ids",
        )
    return array.astype(np.float64)


def _spans(array: Floats, row: int, provider: str, length: int) -> Spans:
    starts, ends = array[:, 0], array[:, 1]
    fits = (starts >= 0) & (starts <= ends) & (ends <= length)  # NaN compares false
    fits &= (starts == np.floor(starts)) & (ends == np.floor(ends))
    if not fits.all():
        wrong = int(np.flatnonzero(~fits)[0])
        raise ContractError(
            "a span that the response does not have",
            provider=provider,
            row=row,
            value=tuple(array[wrong].tolist()),
            bound=f"whole numbers, 0 <= start <= end <= {length} characters",
        )
    return Spans(starts.astype(np.int64), ends.astype(np.int64), array[:, 2].copy())


def _check_values(rows: Sequence[TokenRow], scores: Floats, provider: str) -> None:
    index = np.array([row for row, entry in enumerate(rows) if entry is not None], dtype=np.int64)
    if not len(index):
        return
    values = [entry.scores if isinstance(entry, Spans) else entry for entry in rows]
    parts = [part for part in values if part is not None]
    owner = np.repeat(np.arange(len(index)), [len(part) for part in parts])
    flat = np.concatenate(parts)
    odd = np.flatnonzero(~np.isfinite(flat))
    if len(odd):
        raise ContractError(
            "a token score is not finite",
            provider=provider,
            row=int(index[owner[odd[0]]]),
            value=float(flat[odd[0]]),
            bound="a finite number",
        )
    totals, sizes = (_summed(owner, part, len(index)) for part in (flat, np.abs(flat)))
    want = scores[index]
    near = np.abs(totals - want) <= SUM_TOLERANCE * np.maximum(sizes, np.abs(want))
    wrong = np.flatnonzero(~(near & np.isfinite(sizes)))
    if len(wrong):
        raise ContractError(
            "token scores do not add up to the row's score",
            provider=provider,
            row=int(index[wrong[0]]),
            value=float(totals[wrong[0]]),
            bound=f"{float(want[wrong[0]])!r} up to a share of {SUM_TOLERANCE:g}",
        )


# -- to the tokens ---------------------------------------------------------------------------------


def span_values(spans: Spans, offsets: Ints, base: int = 0) -> Floats:
    """(T,) float64: each span's score on the token that completes its last character.

    An empty span's lies on the token that completes the character before it, and at the very
    beginning on the first token. Spans that end on one token add up.

    Args:
        offsets: (T+1,) of `token_offsets`, T > 0.
        base: where in that text the response begins.
    """
    at = np.searchsorted(offsets[1:], spans.ends + base, side="left")
    return _summed(at, spans.scores, len(offsets) - 1)


@dataclass(frozen=True, eq=False)
class TokenPart:
    """What one token-level mount adds.

    Args:
        rows: B entries; None where the mount adds no score of its own to the row, or where what it
            adds is no longer its score (filled in by `missing` or `on_error`, or held down).
        factor: float or (B,) float64: what its raw score is multiplied by in the sum.
    """

    rows: Sequence[TokenRow]
    factor: float | Floats


def place(
    fused: Floats,
    parts: Sequence[TokenPart],
    *,
    response_ids: Sequence[npt.NDArray[np.int64]],
    response_mask: Sequence[npt.NDArray[np.int64]] | None = None,
    whole: Bools | None = None,
    responses: Sequence[str] | None = None,
    decode: Decode | None = None,
) -> list[Floats]:
    """Token-level rewards: B arrays (T,) float64, each of which adds up to the row's fused reward.

    A row without a fused reward (NaN: masked, blocked) is 0 everywhere, as is one of which the
    policy sampled no token: it has nowhere to put its reward. What a part gives to a token that the
    policy did not sample (tool output) lies on the last sampled one before it, where there is none
    on the first.

    Args:
        fused: (B,) float64, gates included.
        parts: of the token-level mounts, in config order.
        response_ids: B arrays (T,).
        response_mask: B arrays (T,), 0 where the policy did not sample the token. None: it did.
        whole: (B,) bool: rows whose reward lies whole on the last token, because a veto or skip
            took the place of their sum.
        responses: B texts; spans need them.
        decode: see `Decode`; spans need it.

    Raises:
        RewardError: there are spans, and no `decode` or `responses`, or a response is not a part
            of what its ids decode to.
    """
    layout = _Layout(response_ids, response_mask)
    live = np.isfinite(fused) & layout.sampled
    flat = np.zeros(layout.stops[-1] if len(layout.stops) else 0)
    splits = live if whole is None else live & ~whole
    reader = _Reader(response_ids, responses, decode)
    for part in parts:
        factors = np.broadcast_to(np.asarray(part.factor, dtype=np.float64), fused.shape)
        for row in np.flatnonzero(splits).tolist():
            entry = part.rows[row]
            if entry is not None:
                values = reader.values(entry, row) if isinstance(entry, Spans) else entry
                flat[layout.starts[row] : layout.stops[row]] += factors[row] * values
    flat = layout.on_sampled(flat)
    placed = _summed(layout.owner, flat, len(fused))
    flat[layout.last[live]] += fused[live] - placed[live]
    return [flat[a:b] for a, b in zip(layout.starts, layout.stops, strict=True)]


def _summed(index: Ints, values: npt.NDArray[Any], size: int) -> Floats:
    """(size,) float64: the sum of the values at each index."""
    return np.bincount(index, weights=values, minlength=size).astype(np.float64, copy=False)


class _Layout:
    """B responses as one flat array: where each begins and ends, and which tokens were sampled."""

    def __init__(
        self,
        ids: Sequence[npt.NDArray[np.int64]],
        mask: Sequence[npt.NDArray[np.int64]] | None,
    ) -> None:
        lengths = np.array([len(row) for row in ids], dtype=np.int64)
        self.stops = np.cumsum(lengths)
        self.starts = self.stops - lengths
        self.owner = np.repeat(np.arange(len(ids)), lengths)
        self.sampled: Bools = lengths > 0
        self.last = self.stops - 1
        self._home: Ints | None = None
        if mask is None or not len(self.owner):
            return
        policy = np.concatenate([np.asarray(row) for row in mask]).astype(bool)
        if not policy.all():
            self._home = self._homes(policy)
            self.sampled = _summed(self.owner, policy, len(ids)) > 0
            self.last[self.sampled] = self._home[self.last[self.sampled]]

    def _homes(self, policy: Bools) -> Ints:
        """(ΣT,) the token on which what is given to each of them lies."""
        total = len(policy)
        places = np.arange(total)
        before = np.maximum.accumulate(np.where(policy, places, -1))
        after = np.minimum.accumulate(np.where(policy, places, total)[::-1])[::-1]
        home = np.where(before >= self.starts[self.owner], before, after)
        # A row without a sampled token holds nothing, and has no other place for it.
        return np.where(home < self.stops[self.owner], home, places)

    def on_sampled(self, flat: Floats) -> Floats:
        if self._home is None:
            return flat
        return _summed(self._home, flat, len(flat))


class _Reader:
    """Spans -> tokens; a row's offsets are found once."""

    def __init__(
        self,
        ids: Sequence[npt.NDArray[np.int64]],
        responses: Sequence[str] | None,
        decode: Decode | None,
    ) -> None:
        self._ids, self._responses, self._decode = ids, responses, decode
        self._known: dict[int, tuple[Ints, int]] = {}

    def values(self, spans: Spans, row: int) -> Floats:
        if not len(spans.scores):
            return np.zeros(len(self._ids[row]))
        if row not in self._known:
            self._known[row] = self._find(row)
        return span_values(spans, *self._known[row])

    def _find(self, row: int) -> tuple[Ints, int]:
        if self._decode is None or self._responses is None:
            raise RewardError(
                "token scores as character spans need the responses and their decoder"
            )
        ids, response = self._ids[row].tolist(), self._responses[row]
        text = self._decode(ids)
        # The final turn of a longer exchange is the last place where it stands.
        base = 0 if text == response else text.rfind(response)
        if base < 0:
            raise RewardError(
                f"row {row}: token scores as character spans, but its response is no part of what "
                f"its response_ids decode to: {response[:40]!r} is not in {text[:40]!r}"
            )
        return token_offsets(self._decode, ids, text), base
