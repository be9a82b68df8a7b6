"""The conditions of rules: each looks at a column of texts and says where it holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

from verl_reward_rules.texts import Texts

Unit = Literal["chars", "words", "sentences"]


class Condition(Protocol):
    """Something that holds for a text or does not."""

    def holds(self, texts: Texts) -> list[bool]:
        """One answer a row."""
        ...


@dataclass(frozen=True)
class Regex:
    """The pattern is found somewhere in the text."""

    pattern: Any  # a compiled RE2 pattern; RE2 takes time in proportion to the text, always

    def holds(self, texts: Texts) -> list[bool]:
        search = self.pattern.search
        return [search(row) is not None for row in texts.encoded]


@dataclass(frozen=True)
class Contains:
    """Any (or all) of the words stand in the text, as parts of other words too."""

    words: tuple[str, ...]
    every: bool
    ignore_case: bool

    def holds(self, texts: Texts) -> list[bool]:
        wanted = all if self.every else any
        if self.ignore_case:
            words = [word.casefold() for word in self.words]
            return [wanted(word in row for word in words) for row in texts.folded]
        return [wanted(word in row for word in self.words) for row in texts.rows]


@dataclass(frozen=True)
class Length:
    """The length lies between two bounds, both included."""

    unit: Unit
    least: int
    most: int | None

    def holds(self, texts: Texts) -> list[bool]:
        measure = _MEASURES[self.unit]
        top = float("inf") if self.most is None else self.most
        return [self.least <= measure(row) <= top for row in texts.rows]


@dataclass(frozen=True)
class Json:
    """The text is valid JSON (RFC 8259) and, where keys are asked for, an object that has them."""

    keys: tuple[str, ...]

    def holds(self, texts: Texts) -> list[bool]:
        return [self._holds(row) for row in texts.rows]

    def _holds(self, text: str) -> bool:
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            # RecursionError: thousands of nested brackets, which no reader of the answer takes.
            return False
        if not self.keys:
            return True
        return isinstance(value, dict) and all(key in value for key in self.keys)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def count_words(text: str) -> int:
    """The pieces between white space."""
    return len(text.split())


def count_sentences(text: str) -> int:
    """Sentences: pieces with a letter or digit that end in ``. ! ? …`` before white space.

    The marks of Chinese and Japanese end one wherever they stand; what follows the last mark
    counts as one more.
    """
    for mark in "。！？":
        text = text.replace(mark, f"{mark} ")
    count, begun = 0, False
    for word in text.split():
        begun = begun or any(character.isalnum() for character in word)
        if begun and word.rstrip("\"'”’»)]*_").endswith((".", "!", "?", "…", "。", "！", "？")):
            count, begun = count + 1, False
    return count + begun


_MEASURES = {"chars": len, "words": count_words, "sentences": count_sentences}
