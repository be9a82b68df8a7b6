"""Text as the list sees it: NFKC, case folded, without invisible characters, spaces in one width.

Every character of the result remembers where in the original text it came from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from verl_reward_safety.invisible import INVISIBLE


@dataclass(frozen=True)
class Normalised:
    """A normalised text of N characters and its way back.

    Args:
        text: N characters.
        starts: N offsets into the original: where the character's source begins.
        ends: N offsets into the original: one past where it ends.
    """

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """``[start, end)`` of the normalised text as ``[start, end)`` of the original."""
        return self.starts[start], self.ends[end - 1]


def normalise(text: str) -> Normalised:
    """Normalise `text`, word lists and responses alike.

    Invisible characters go, each cluster is brought to NFKC and case folded, and each run of white
    space becomes one space.
    """
    if text.isascii() and text.isprintable() and "  " not in text:
        # Most text: every character stays where it is.
        return Normalised(text.lower(), range(len(text)), range(1, len(text) + 1))
    kept: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for cluster, start, end in _clusters(text):
        for character in _folded(cluster):
            if character.isspace():
                if kept and kept[-1] == " ":
                    continue
                character = " "
            kept.append(character)
            starts.append(start)
            ends.append(end)
    return Normalised("".join(kept), starts, ends)


def _clusters(text: str) -> Iterator[tuple[str, int, int]]:
    """``(visible characters, start, end)`` of the pieces that NFKC can change on their own.

    A piece is a character and those that NFKC may join to it: NFKC of the whole text is the
    pieces' NFKC in a row.
    """
    cluster, start, end = "", 0, 0
    for position, character in enumerate(text):
        if character in INVISIBLE:
            continue
        if cluster and not _joins(character):
            yield cluster, start, end
            cluster = ""
        if not cluster:
            start = position
        cluster += character
        end = position + 1
    if cluster:
        yield cluster, start, end


@lru_cache(maxsize=65536)
def _folded(cluster: str) -> str:
    # Folding can undo the composition (the Turkish capital I with dot), hence NFKC twice.
    composed = unicodedata.normalize("NFKC", cluster)
    folded = unicodedata.normalize("NFKC", composed.casefold())
    return "".join(c for c in folded if c not in INVISIBLE)


@lru_cache(maxsize=65536)
def _joins(character: str) -> bool:
    """May NFKC join this character to the one before it?"""
    first = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.combining(first) != 0 or first in _composing_starters()


@lru_cache(maxsize=1)
def _composing_starters() -> frozenset[str]:
    """Characters of combining class 0 that nevertheless compose with the one before them.

    The vowel and final letters of Hangul, whose composition is arithmetic, and the second halves
    of canonical pairs (vowel signs of Indic scripts).
    """
    seconds = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}
    for code in range(0x00C0, 0x20000):
        pair = unicodedata.decomposition(chr(code)).split()
        if len(pair) == 2 and not pair[0].startswith("<"):
            seconds.add(chr(int(pair[1], 16)))
    return frozenset(c for c in seconds if unicodedata.combining(c) == 0)
