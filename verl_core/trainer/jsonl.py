"""JSON lines: one strict JSON object a line, UTF-8, as the files of a run's folder hold them.

A process that is killed while it writes leaves at most a torn last line, and a write that fails (a
full disk) is taken back. Readers pass over a torn last line; every other line that is not JSON is
an error that names file and line.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from verl_reward_sdk import VerlRewardError

_DEEPEST = 200  # levels; Python's own limit is 1,000 calls, of which some are in use


def plain(value: Any, *, _level: int = 1) -> Any:
    """`value` as strict JSON knows it: numpy's numbers and arrays unwrapped, NaN and infinity null.

    A figure that is not a number (the mean of no rows) is null in every file of a run, because
    ``NaN`` is no JSON and most readers refuse it. What is nested deeper than 200 levels is "…".
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if _level > _DEEPEST:
        return "…"
    inside = functools.partial(plain, _level=_level + 1)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [inside(item) for item in value]
    if hasattr(value, "tolist"):
        return inside(value.tolist())
    if hasattr(value, "items"):
        return {str(key): inside(item) for key, item in value.items()}
    return str(value)


def encode(record: Any) -> bytes:
    """One record as one line. A lone surrogate is written as its JSON escape."""
    text = json.dumps(plain(record), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def append(file: io.FileIO, lines: bytes) -> None:
    """Write whole lines at the end of `file`, all of them or none.

    Args:
        file: opened unbuffered for appending, by one writer.
        lines: each with its end.

    Raises:
        VerlRewardError: they could not all be written. The file ends where it did before, or, if
            that fails too, in a torn line.
    """
    end = os.fstat(file.fileno()).st_size
    rest = memoryview(lines)
    try:
        while rest:
            taken = file.write(rest)
            if not taken:
                raise OSError(errno.EIO, "the system took no byte")
            rest = rest[taken:]
    except OSError as error:
        with contextlib.suppress(OSError):  # of two errors the first says why
            file.truncate(end)
        raise _unwritten(str(file.name), len(lines), error) from error


def still_there(file: io.FileIO) -> io.FileIO:
    """`file`, opened for appending; where somebody has removed it, a new one of its name: what is
    written to a file without a name is lost."""
    if os.fstat(file.fileno()).st_nlink > 0:
        return file
    try:
        renewed = io.FileIO(file.name, "ab")
    except OSError as error:
        why = error.strerror or error
        raise VerlRewardError(
            f"{file.name} was removed, and cannot be made again: {why}"
        ) from error
    file.close()
    return renewed


def _unwritten(name: str, size: int, error: OSError) -> VerlRewardError:
    why = error.strerror or str(error)
    return VerlRewardError(f"{name}: {size} bytes could not be written: {why}")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of `path`, first to last; nothing where the file does not exist.

    Raises:
        VerlRewardError: a line that is no JSON object, with its file and line. A last line without
            an end is a torn write and is passed over.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record = _decode(line)
            if record is not None:
                yield record
            elif line.endswith(b"\n"):
                raise VerlRewardError(f"{path}:{number}: expected one JSON object on this line")


def readable(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of `path`, first to last, as far as they can be read: no line is an error, and a
    file that cannot be opened holds none."""
    with contextlib.suppress(OSError), path.open("rb") as lines:
        for line in lines:
            record = _decode(line)
            if record is not None:
                yield record


def keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrite `path` with the objects that are `wanted`, atomically: old or new, never between.

    Lines that are no JSON object (torn writes) go too. A missing file stays missing.

    Raises:
        VerlRewardError: the new file cannot be written; the old one stands.
    """
    if not path.exists():
        return
    try:
        _rewrite(path, wanted)
    except OSError as error:
        raise _unwritten(str(path), path.stat().st_size, error) from error


def _rewrite(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as target, path.open("rb") as lines:
            for line in lines:
                record = _decode(line)
                if record is not None and wanted(record):
                    target.write(line if line.endswith(b"\n") else line + b"\n")
            target.flush()
            os.fsync(target.fileno())
        os.chmod(scratch, path.stat().st_mode & 0o777)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
