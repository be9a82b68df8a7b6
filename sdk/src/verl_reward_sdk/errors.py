"""The errors that cross a seam of verl-reward.

Each says what was tried, what was found, and what to do next. Code that runs somebody else's code
turns whatever it raises into one of these at its boundary.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` most likely meant, or None where none is near."""
    known = {candidate.casefold(): candidate for candidate in candidates}
    match = difflib.get_close_matches(name.casefold(), known, n=1, cutoff=0.6)
    return known[match[0]] if match else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """``did you mean 'tone'?``, or the few names there are, or an empty string."""
    names = list(dict.fromkeys(candidates))
    match = nearest(name, names)
    if match is not None:
        return f"did you mean {match!r}?"
    if 0 < len(names) <= 12:
        return "known: " + ", ".join(sorted(names))
    return ""


class VerlRewardError(Exception):
    """Base class of every error that verl-reward raises on purpose."""


class ConfigError(VerlRewardError):
    """Something that a person wrote (a YAML, a rule file, a command line) cannot be used.

    Args:
        message: what is wrong, with the value and the bound.
        file: the file it stands in.
        line: 1-based line, where known.
        column: 1-based column, where known.
        path: the YAML path, with mounts by name: ``reward.tone.weight``.
        hint: what to do next, or the nearest right name.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        column: int | None = None,
        path: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = None if file is None else str(file)
        self.line = line
        self.column = column
        self.path = path
        self.hint = hint or None

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}" if place else f"line {self.line}"
            if self.column is not None:
                place += f":{self.column}"
        parts = [part for part in (place, self.path) if part]
        text = ": ".join([*parts, self.message])
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self._places())

    def _places(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("file", "line", "column", "path", "hint")}

    def with_location(
        self,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        column: int | None = None,
        path: str | None = None,
    ) -> ConfigError:
        """A copy in which the places that are still unknown are filled in.

        An error that already names a file of its own keeps its line and column.
        """
        places = self._places()
        if places["file"] is None:
            places["file"] = file
            if places["line"] is None:
                places["line"], places["column"] = line, column
        places["path"] = places["path"] or path
        return type(self)(self.message, **places)


def _rebuild(cls: type[ConfigError], message: str, places: dict[str, Any]) -> ConfigError:
    return cls(message, **places)


class PluginError(ConfigError):
    """A config names a plugin that is missing, broken, incompatible, disabled or in conflict."""


class ContractError(VerlRewardError):
    """A provider answered what its contract forbids. Every row of that call fails.

    Args:
        message: what was broken, in words.
        provider: the provider's (or mount's) name.
        row: 0-based row of the batch that was handed to it, None where the whole answer is meant.
        value: what it answered.
        bound: what would have been right.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        row: int | None = None,
        value: object = None,
        bound: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.provider = provider
        self.row = row
        self.value = value
        self.bound = bound

    def __str__(self) -> str:
        where = f"{self.provider}: " if self.row is None else f"{self.provider}: row {self.row}: "
        text = f"{where}{self.message}: got {self.value!r}"
        return text if self.bound is None else f"{text}, expected {self.bound}"


class ProviderError(VerlRewardError):
    """A provider raised, died, or could not be set up."""


class ProviderTimeout(ProviderError):
    """A provider did not answer before its deadline."""


class RewardError(VerlRewardError):
    """A step whose rewards may not be trained on: too many rows failed, or no live row is left."""
