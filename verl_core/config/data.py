"""The prompts of a run: JSON lines, read strictly: a bad row ends a run before it begins."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_core.config.problems import raise_all
from verl_reward_sdk.errors import ConfigError, did_you_mean, nearest

Prompt = str | list[dict[str, Any]]
ROLES = ("system", "user", "assistant", "tool")
#: So many bad rows are told one by one.
MAX_TOLD = 10
#: Objects and lists within one another in a row, the row itself included: as in a YAML document.
#: What reads the row later, a provider or the writer of samples, may go down by calling itself.
MAX_DEPTH = 64
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class DataRow:
    """One row of a data file.

    Args:
        prompt: text, or messages ``{role, content, …}``.
        columns: every other key of the row.
        line: its 1-based line.
        source: its file.
    """

    prompt: Prompt
    columns: Mapping[str, Any]
    line: int
    source: Path


def read_rows(path: Path, *, prompt_key: str = "prompt") -> list[DataRow]:
    """Read a file of JSON lines. Blank lines, a byte order mark and CRLF are passed over; null
    characters that are written as ``\\u0000`` and lines of any length are kept.

    Raises:
        ConfigError: the file cannot be read or has no rows, or rows are bad: no JSON object, NaN or
            infinity, duplicate keys, more than 64 levels, no prompt, an empty one, or one of the
            wrong form. File and line are named; of many bad rows the first are told, and how many
            there are.
    """
    rows: list[DataRow] = []
    problems: list[ConfigError] = []
    for line, raw in _lines(path):
        try:
            columns = _decode(raw)
            prompt = _prompt(columns, prompt_key)
        except _RowError as error:
            problems.append(
                ConfigError(
                    error.message, file=path, line=line, column=error.column, hint=error.hint
                )
            )
            continue
        del columns[prompt_key]
        rows.append(DataRow(prompt, columns, line, path))
    if len(problems) > MAX_TOLD:
        more = len(problems) - MAX_TOLD
        rest = ConfigError(f"{more} more rows are bad", file=path)
        problems = [*problems[:MAX_TOLD], rest]
    raise_all(problems)
    if not rows:
        raise ConfigError("the file is empty", file=path, hint="one JSON object a line is needed")
    return rows


class _RowError(Exception):
    def __init__(self, message: str, hint: str = "", column: int | None = None) -> None:
        super().__init__(message)
        self.message, self.hint, self.column = message, hint, column


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if raw.strip():
                    yield number, raw
    except FileNotFoundError:
        raise ConfigError("no such file", file=path, hint=_similar(path)) from None
    except IsADirectoryError:
        raise ConfigError("this is a folder, a file is needed", file=path) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=path) from None


def _similar(path: Path) -> str:
    folder = next((parent for parent in path.parents if parent.is_dir()), path.parent)
    if folder != path.parent:
        return f"there is no folder {path.parent}"
    match = nearest(path.name, (entry.name for entry in folder.iterdir()))
    return f"did you mean {match!r}?" if match else ""


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise _RowError(message, "save the file as UTF-8", error.start + 1) from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except json.JSONDecodeError as error:
        hint = "a whole file in one array is not JSON lines" if text.strip() == "[" else ""
        hint = hint or "one JSON object a line is needed"
        raise _RowError(f"not JSON: {error.msg}", hint, error.colno) from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(value, dict):
        raise _RowError(f"expected a JSON object, got {_kind(value)}", "{…} on each line")
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        raise _too_deep()
    if _SURROGATE.search(raw):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise _RowError("half of a surrogate pair (\\ud800 …) is no character") from None
    return value


def _too_deep() -> _RowError:
    return _RowError(f"nested deeper than {MAX_DEPTH} levels", "keep it flatter, or as one text")


def _is_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return bool(level)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _RowError(f"the key {twice!r} stands in it twice")
    return row


def _no_constant(text: str) -> Any:
    raise _RowError(f"{text} is no number that can be used", "write null for a missing value")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RowError(f"{text[:40]} is too large a number")
    return value


def _whole(text: str) -> int:
    if len(text) > 300:  # beyond what a float can hold; Python refuses some thousand digits anyway
        raise _RowError(f"{text[:40]}… is too large a number")
    return int(text)


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return names[type(value)]


def _prompt(row: Mapping[str, Any], key: str) -> Prompt:
    if key not in row:
        hint = did_you_mean(key, row)
        hint = hint if hint.startswith("did") else f"{hint}; data.prompt_key names another"
        raise _RowError(f"the row has no {key!r}, which data.prompt_key names", hint.lstrip("; "))
    prompt = row[key]
    if isinstance(prompt, str):
        if not prompt.strip():
            raise _RowError(f"{key!r} is empty")
        return prompt
    if not isinstance(prompt, list):
        raise _RowError(f"{key!r} must be text or a list of messages, got {_kind(prompt)}")
    for index, message in enumerate(prompt):
        _check_message(f"{key!r}[{index}]", message)
    if not any(message["content"].strip() for message in prompt):
        raise _RowError(f"{key!r} is empty")
    return prompt


def _check_message(where: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise _RowError(f"{where} must be {{role, content}}, got {_kind(message)}")
    for part in ("role", "content"):
        if part not in message:
            raise _RowError(f"{where} has no {part!r}", did_you_mean(part, message))
        if not isinstance(message[part], str):
            raise _RowError(f"{where}: {part!r} must be text, got {_kind(message[part])}")
    if message["role"] not in ROLES:
        hint = did_you_mean(message["role"], ROLES)
        raise _RowError(f"{where}: {message['role']!r} is no role", hint)


def require_columns(
    rows: Sequence[DataRow],
    columns: Sequence[str],
    needed_by: Mapping[str, Sequence[str]],
) -> None:
    """Refuse rows without a column that a mount reads. A null is a value: the mount judges it.

    Args:
        rows: of one file.
        columns: the columns that must be in every row.
        needed_by: column -> the mounts that read it.

    Raises:
        ConfigError: the file, the first line without the column, how many more, and the mounts.
    """
    problems = []
    for column in columns:
        lacking = [row for row in rows if column not in row.columns]
        if not lacking:
            continue
        mounts = ", ".join(repr(mount) for mount in needed_by.get(column, ()))
        readers = f", which {mounts} read" + ("s" if "," not in mounts else "") if mounts else ""
        if len(lacking) == len(rows):
            message = f"no row has the column {column!r}{readers}"
        else:
            more = f" ({len(lacking) - 1} more rows lack it)" if len(lacking) > 1 else ""
            message = f"the row has no column {column!r}{readers}{more}"
        names = dict.fromkeys(name for row in lacking[:100] for name in row.columns)
        hint = did_you_mean(column, names)
        first = lacking[0]
        problems.append(ConfigError(message, file=first.source, line=first.line, hint=hint))
    raise_all(problems)
