"""Decoders for tests that look for a character's token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def utf8(ids: Sequence[int]) -> str:
    """A byte a token; ids from 256 on are special."""
    return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


def decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    def decode(ids: list[int]) -> str:
        text: str = tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    return decode
