"""One cached row, and how it lies in a file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from verl_core.rewards.tokens import Spans, TokenRow

_CHECK_BYTES = 8


@dataclass(frozen=True, eq=False)
class CachedRow:
    """What a provider said about one row that it scored.

    Args:
        score: the raw score, finite.
        word: its severity as in `verl_core.rewards.statuses`, or None where it gave none.
        reason: what it saw, or None.
        extras: ``(name, value)`` pairs.
        tokens: its token scores.
    """

    score: float
    word: int | None = None
    reason: str | None = None
    extras: tuple[tuple[str, float], ...] = ()
    tokens: TokenRow = None


def pack(key: bytes, row: CachedRow) -> tuple[bytes, bytes | None, bytes]:
    """``(value, tokens, check)``: JSON, float64 bytes, and a digest of both with the key.

    SQLite does not notice a bit that a disk turned; the digest does. Floats keep all their bits.
    """
    kind, raw = _token_bytes(row.tokens)
    value = json.dumps([row.score, row.word, row.reason, row.extras, kind]).encode()
    return value, raw, _check(key, value, raw)


def unpack(key: bytes, value: object, tokens: object, check: object) -> CachedRow | None:
    """The inverse of `pack`; None where what it finds is not what was written."""
    if not isinstance(value, bytes) or not isinstance(tokens, (bytes, type(None))):
        return None
    if check != _check(key, value, tokens):
        return None
    score, word, reason, extras, kind = json.loads(value)
    if not math.isfinite(score):
        return None
    pairs = tuple((str(name), float(number)) for name, number in extras)
    return CachedRow(score, word, reason, pairs, _tokens(kind, tokens))


def _check(key: bytes, value: bytes, tokens: bytes | None) -> bytes:
    digest = blake2b(key, digest_size=_CHECK_BYTES)
    digest.update(len(value).to_bytes(8, "big"))
    digest.update(value)
    digest.update(tokens or b"")
    return digest.digest()


def _token_bytes(tokens: TokenRow) -> tuple[str | None, bytes | None]:
    if tokens is None:
        return None, None
    if isinstance(tokens, Spans):
        table = np.stack([tokens.starts, tokens.ends, tokens.scores], axis=1)
        return "spans", table.astype("<f8").tobytes()
    return "values", tokens.astype("<f8").tobytes()


def _tokens(kind: str | None, raw: bytes | None) -> TokenRow:
    if kind is None or raw is None:
        return None
    values = np.frombuffer(raw, dtype="<f8").astype(np.float64)
    if kind == "values":
        return values
    table = values.reshape(-1, 3)
    return Spans(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2].copy())
