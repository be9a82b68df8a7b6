"""Which token of a response holds which character, found by decoding growing prefixes of its ids.

A text is never encoded again: sampled ids are seldom those that a tokenizer would choose for their
text. A character that several tokens make together (byte-level vocabularies) belongs to the token
that completes it: until then the prefix ends in U+FFFD, which the whole text does not hold there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

Decode: TypeAlias = Callable[[list[int]], str]
"""Token ids -> text, as `RewardBatch.responses` was decoded: no special tokens, not cleaned up."""

_INCOMPLETE = "\ufffd"
_SHORT = 16  # tokens: below this a window saves nothing


def token_offsets(decode: Decode, ids: Sequence[int] | Ints, text: str | None = None) -> Ints:
    """(T+1,) int64: how many characters of the text are there after each number of tokens.

    Token t holds the characters from ``offsets[t]`` up to ``offsets[t + 1]``; a special token, and
    one that only begins a character, holds none. ``offsets[t]`` is the length of the longest common
    beginning of ``decode(ids[:t])`` and ``decode(ids)``, and never falls.

    Decoding every prefix costs O(T²). Windows of about √T tokens (O(T^1.5)) serve as well where
    each begins behind a complete character, and its text, put behind the text so far, is what the
    whole prefix decodes to: that is checked at the end of every window. With decoders that join
    the tokens' bytes and read them as UTF-8 the two are the same at every token. A decoder to whom
    a token's neighbours matter fails the check, and then every prefix is decoded.

    Args:
        decode: see `Decode`.
        ids: T token ids.
        text: ``decode(ids)``, where it is known.
    """
    tokens = [int(token) for token in ids]
    if not tokens:
        return np.zeros(1, dtype=np.int64)
    whole = decode(tokens) if text is None else text
    offsets = _by_windows(decode, tokens, whole)
    return _by_prefixes(decode, tokens, whole) if offsets is None else offsets


def _by_prefixes(decode: Decode, ids: list[int], text: str) -> Ints:
    offsets = np.zeros(len(ids) + 1, dtype=np.int64)
    for t in range(1, len(ids) + 1):
        offsets[t] = max(offsets[t - 1], _shared(decode(ids[:t]), text))
    return offsets


def _by_windows(decode: Decode, ids: list[int], text: str) -> Ints | None:
    """The same, or None where a window's text is not its part of the prefix's."""
    window = max(_SHORT, isqrt(len(ids)))
    offsets = np.zeros(len(ids) + 1, dtype=np.int64)
    begin, base = 0, 0  # tokens and characters before the window
    while begin < len(ids):
        rest, t, piece = text[base:], begin, ""
        while t < len(ids) and (t - begin < window or piece.endswith(_INCOMPLETE)):
            t += 1
            piece = decode(ids[begin:t])
            offsets[t] = max(offsets[t - 1], base + _shared(piece, rest))
        prefix = text if t == len(ids) else decode(ids[:t])
        if prefix != text[:base] + piece or not text.startswith(prefix):
            return None
        begin, base = t, len(prefix)
    return offsets


def _shared(part: str, text: str) -> int:
    """The length of the longest common beginning."""
    if text.startswith(part):
        return len(part)
    low, high = 0, min(len(part), len(text))
    while low < high:
        middle = (low + high + 1) // 2
        if part[low:middle] == text[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
