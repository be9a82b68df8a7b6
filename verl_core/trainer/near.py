"""Paths as a person would type them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_started: list[str] = []


@contextmanager
def started_here() -> Iterator[None]:
    """As long as this lasts, `near` counts from what is the current folder now: the person who
    reads its paths sits there still, wherever a plugin has changed to."""
    try:
        _started.append(os.getcwd())
    except OSError:  # somebody has removed it
        _started.append("")
    try:
        yield
    finally:
        _started.pop()


def here() -> str | None:
    """The folder that `near` counts from; None where it is gone."""
    if _started:
        return _started[-1] or None
    try:
        return os.getcwd()
    except OSError:
        return None


def near(path: Path) -> str:
    """`path` as one would type it here: relative where it lies under the current folder."""
    start = here()
    if start is None:
        return str(path)
    # Not resolved: an environment's python is a link out of it.
    found = os.path.relpath(os.path.join(start, path), start)
    return str(path) if found.startswith("..") else found
