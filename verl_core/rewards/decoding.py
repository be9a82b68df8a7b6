"""From sampled token ids to text, as `RewardBatch.responses` and ``responses_raw`` hold it.

A tokenizer of transformers whose decoding is the library's own spends more than half of its time
around the Rust tokenizer that does the work: that one is then asked directly. The texts are those
of ``batch_decode(…, clean_up_tokenization_spaces=False)`` either way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = Sequence[int] | npt.NDArray[np.int64]

#: What a tokenizer class may override, so that its texts are no longer the Rust tokenizer's.
_DECODING = ("_decode", "decode", "batch_decode")


class ResponseDecoder:
    """The texts of responses.

    Args:
        tokenizer: one of transformers, or with its ``batch_decode`` and ``all_special_ids``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self._quick = _rust_decode(tokenizer)
        self._joins = self._quick is not None and _joins_bytes(tokenizer)
        self._marks: dict[int, str] = {}

    def texts(self, rows: Sequence[Ids], *, skip_special_tokens: bool = True) -> list[str]:
        """The text of each row of token ids, not cleaned up."""
        return self._texts([_plain(row) for row in rows], skip_special_tokens)

    def text(self, ids: Ids) -> str:
        """The text of one row, without special tokens."""
        return self._texts([_plain(ids)], skip_special_tokens=True)[0]

    def both(self, rows: Sequence[Ids]) -> tuple[list[str], list[str]]:
        """``(responses, responses_raw)``: without special tokens, and with them.

        A row that holds none has one text, and is decoded once; so is one that holds one at its
        end, where that token's text stands behind the others' whatever they are.
        """
        ids = [_plain(row) for row in rows]
        responses = self._texts(ids, skip_special_tokens=True)
        raw, again = list(responses), []
        for i, row in enumerate(ids):
            ends = self._joins and bool(row) and row[-1] in self._special
            if not self._special.isdisjoint(row[:-1] if ends else row):
                again.append(i)
            elif ends:
                raw[i] += self._text_of(row[-1])
        texts = self._texts([ids[i] for i in again], skip_special_tokens=False)
        for i, text in zip(again, texts, strict=True):
            raw[i] = text
        return responses, raw

    def _text_of(self, token: int) -> str:
        """The text of a special token."""
        if token not in self._marks:
            self._marks[token] = self._texts([[token]], skip_special_tokens=False)[0]
        return self._marks[token]

    def _texts(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        if not rows:
            return []
        if self._quick is not None:
            decode = self._quick
            return [decode(row, skip_special_tokens=skip_special_tokens) for row in rows]
        texts: list[str] = self._tokenizer.batch_decode(
            rows, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return texts


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Every token that ``skip_special_tokens`` leaves out: more than ``all_special_ids``, which
    holds those with a role (begin, end, padding) only."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {number for number, token in added.items() if getattr(token, "special", False)}
    return frozenset(marked.union(tokenizer.all_special_ids))


def _joins_bytes(tokenizer: Any) -> bool:
    """Whether texts are the tokens' bytes, one behind the other, read as UTF-8: a special token,
    which begins with a whole character, then changes nothing before it."""
    return type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"


def _plain(row: Ids) -> list[int]:
    return row.tolist() if isinstance(row, np.ndarray) else list(row)


def _rust_decode(tokenizer: Any) -> Callable[..., str] | None:
    """``backend_tokenizer.decode``, where nothing that `tokenizer` adds changes the text."""
    own = getattr(sys.modules.get("transformers"), "PreTrainedTokenizerFast", None)
    if own is None or not isinstance(tokenizer, own):
        return None
    if any(getattr(type(tokenizer), name) is not getattr(own, name) for name in _DECODING):
        return None
    decode: Callable[..., str] = tokenizer.backend_tokenizer.decode
    return decode
