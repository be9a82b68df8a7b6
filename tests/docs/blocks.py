"""Fenced blocks of Markdown."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^`([\w./-]+)`:\n\n\Z", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        place: ``README.md:12``, its first line.
        language: as written behind the fence.
        text: what stands in it.
        gap: the prose between the block before and this one.
        file: the file that it is, where the line above it names one.
    """

    place: str
    language: str
    text: str
    gap: str
    file: str | None

    def commands(self) -> list[list[str]]:
        """Its command lines as words, without comments."""
        found, open_lines = [], ""
        for line in self.text.replace("\\\n", " ").splitlines(keepends=True):
            open_lines += line
            try:
                found.append(shlex.split(open_lines, comments=True))
            except ValueError:  # a quotation goes on in the next line
                continue
            open_lines = ""
        assert not open_lines, f"{self.place}: a quotation without its end"
        return [words for words in found if words]


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text = path.read_text(encoding="utf-8")
    blocks, end = [], 0
    for match in _FENCE.finditer(text):
        gap, end = text[end : match.start()], match.end()
        named = _FILE.search(gap)
        place = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        blocks.append(Block(place, match[1], match[2], gap, named[1] if named else None))
    assert text.count("```") == 2 * len(blocks), f"{path}: a fence without its end, or indented"
    return blocks


def is_excerpt(part: Any, whole: Any) -> bool:
    """Whether all of `part` stands in `whole`; of a list, some items in any order."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_excerpt(part[key], whole[key]) for key in part)
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(is_excerpt(item, other) for other in whole) for item in part)
    return bool(part == whole)


def rounded(value: Any) -> Any:
    """A JSON value, its numbers to three places."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value
