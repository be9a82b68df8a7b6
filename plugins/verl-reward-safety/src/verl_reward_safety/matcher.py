"""All terms of a list in one pass over a text.

Aho and Corasick (1975), doi:10.1145/360825.360855, by pyahocorasick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from verl_reward_safety.normalise import normalise
from verl_reward_safety.scripts import is_whole
from verl_reward_safety.wordlist import Term


@dataclass(frozen=True)
class Hit:
    """A forbidden term in a text.

    Args:
        term: the term as the list writes it.
        start: 0-based offset of its first character in the original text.
        end: one past its last character.
    """

    term: str
    start: int
    end: int


class Matcher:
    """Finds forbidden terms that do not stand inside an allowed one."""

    def __init__(self, forbidden: Sequence[Term], allowed: Sequence[Term] = ()) -> None:
        import ahocorasick  # type: ignore[import-not-found]

        self._automaton: Any = ahocorasick.Automaton()
        allowances = {term.sought for term in allowed}
        for term in (*allowed, *forbidden):
            # A term on both lists is always inside its allowance: the allowance alone is enough.
            forbids = term.sought not in allowances
            self._automaton.add_word(term.sought, (len(term.sought), forbids, term.written))
        self._automaton.make_automaton()

    def hits(self, text: str) -> list[Hit]:
        """The forbidden terms of `text` from left to right, without those inside a longer one."""
        normalised = normalise(text)
        forbidden: list[tuple[int, int, str]] = []
        allowed: list[tuple[int, int]] = []
        for last, (length, forbids, written) in self._automaton.iter(normalised.text):
            start, end = last + 1 - length, last + 1
            if not is_whole(normalised.text, start, end):
                continue
            if forbids:
                forbidden.append((start, end, written))
            else:
                allowed.append((start, end))
        return [
            Hit(written, *normalised.span(start, end))
            for start, end, written in _longest(forbidden)
            if not any(first <= start and end <= last for first, last in allowed)
        ]


def _longest(found: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Without the matches that lie within another, by start."""
    reach = 0
    for start, end, written in sorted(found, key=lambda match: (match[0], -match[1])):
        if end > reach:
            reach = end
            yield start, end, written
