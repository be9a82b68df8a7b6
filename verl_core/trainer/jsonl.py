"""JSON lines: one strict JSON object a line, UTF-8, as the files of a run's folder hold them.

A process that is killed while it writes leaves at most a torn last line. Readers pass over that
one line; every other line that is not JSON is an error that names file and line.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from verl_reward_sdk import VerlRewardError


def plain(value: Any) -> Any:
    """`value` as strict JSON knows it: numpy's numbers and arrays unwrapped, NaN and infinity null.

    A figure that is not a number (the mean of no rows) is null in every file of a run, because
    ``NaN`` is no JSON and most readers refuse it.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)


def encode(record: Any) -> bytes:
    """One record as one line. A lone surrogate is written as its JSON escape."""
    text = json.dumps(plain(record), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


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


def keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrite `path` with the objects that are `wanted`, atomically: old or new, never between.

    Lines that are no JSON object (torn writes) go too. A missing file stays missing.
    """
    if not path.exists():
        return
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
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
