"""A word list: one term a line, UTF-8, ``#`` begins a comment."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import Path

from verl_reward_safety.normalise import normalise
from verl_reward_sdk import ConfigError

#: A list of a million terms has some 20 MB; whatever is larger was meant for something else.
MAX_BYTES = 32 * 1024 * 1024
#: Longer lines are prose or data, not terms.
MAX_TERM = 500

_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Term:
    """A term as it is written and as it is looked for."""

    written: str
    sought: str


def read_terms(path: Path) -> tuple[Term, ...]:
    """The terms of a list in its order, each normalised form once (the first spelling stays).

    A ``#`` at the start of a line or after white space begins a comment; ``\\#`` is the sign
    itself (``\\#1``).

    Raises:
        ConfigError: the file is unreadable, too large, not UTF-8 text, has an empty line, a line
            without a visible character or of more than `MAX_TERM` characters, or no term at all.
    """
    terms: dict[str, Term] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            raise ConfigError(
                "the line is empty, and an empty term would match every text",
                file=path,
                line=number,
                hint="remove the line, or begin it with #",
            )
        written = _COMMENT.sub("", line).strip().replace("\\#", "#")
        if not written:
            continue
        if len(written) > MAX_TERM:
            raise ConfigError(
                f"a term of {len(written)} characters, at most {MAX_TERM} are allowed",
                file=path,
                line=number,
                hint="write one word or phrase a line",
            )
        sought = normalise(written).text.strip()
        if not sought:
            raise ConfigError(
                f"the term {written!a} has no visible character", file=path, line=number
            )
        terms.setdefault(sought, Term(written, sought))
    if not terms:
        raise ConfigError("the list has no term", file=path, hint="write one term a line")
    return tuple(terms.values())


def _lines(path: Path) -> list[str]:
    raw = _bytes(path)
    if raw.startswith(_UTF16):
        raise ConfigError(
            "the list is UTF-16, expected UTF-8", file=path, line=1, hint="save it as UTF-8"
        )
    zero = raw.find(b"\0")
    if zero >= 0:
        raise ConfigError(
            "the file is binary, expected a text with one term a line",
            file=path,
            line=_line_of(raw, zero),
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            file=path,
            line=_line_of(raw, error.start),
            hint="save the list as UTF-8",
        ) from error
    # Not splitlines(): it also cuts at form feeds and other signs that editors count as characters.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read the word list: {error.strerror or error}", file=path
        ) from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            f"the file has more than {MAX_BYTES // 2**20} MiB, too much for a word list", file=path
        )
    return raw


def _line_of(raw: bytes, offset: int) -> int:
    return raw.count(b"\n", 0, offset) + 1
