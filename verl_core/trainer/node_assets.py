"""Which files belong to a `RewardNode`: those that it opens while it is constructed.

Python tells of every file that it opens (its ``open`` audit event), torch's and json's included.
Libraries that read files by themselves, as safetensors does, are not heard: there the paths among
`init_kwargs` count, and ``watch:``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verl_core.rewards.reload.fingerprint import Missing, Stamp, scan, stamp_of

_CODE = (".py", ".pyc", ".pyi", ".so")

_heard = threading.local()
_installing = threading.Lock()
_installed = False


@contextmanager
def opened_files(folder: Path) -> Iterator[dict[Path, Stamp]]:
    """The files below `folder` that this thread opens to read inside the body, in their order, each
    with its stamp before it was opened.

    Code does not count: a module that is imported is no asset. The hook stays with the process
    (Python has no way to take one away) and does nothing outside of such bodies.
    """
    _install()
    found: dict[Path, Stamp] = {}
    root = os.path.realpath(folder)
    before = getattr(_heard, "into", None)
    _heard.into = (folder, root, found)
    try:
        yield found
    finally:
        _heard.into = before


def paths_among(init_kwargs: Mapping[str, Any], folder: Path) -> list[Path]:
    """The files and folders that arguments name, relative ones from `folder`.

    The config's folder itself is none, nor is one above it: it holds the runs.
    """
    found: list[Path] = []
    stack: list[Any] = [init_kwargs]
    while stack:
        value = stack.pop(0)
        if isinstance(value, Mapping):
            stack += value.values()
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            stack += value
        elif isinstance(value, str | os.PathLike) and str(value) and "\0" not in str(value):
            path = Path(os.path.abspath(folder / Path(value).expanduser()))
            if _exists(path) and not _holds(path, folder):
                found.append(path)
    return found


def stamps_of(paths: Sequence[Path]) -> dict[str, Stamp]:
    """Path -> stamp of the files that these are, or hold."""
    try:
        return dict(scan([os.fspath(path) for path in paths]).files)
    except Missing:
        return {}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a text too long to be a path
        return False


def _holds(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(path))


def _install() -> None:
    global _installed
    with _installing:
        if not _installed:
            sys.addaudithook(_hear)
            _installed = True


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    into = getattr(_heard, "into", None)
    if into is None:
        return
    name, mode, flags = arguments
    if not isinstance(name, str | bytes | os.PathLike):
        return  # a descriptor
    reads = mode.strip("bt") == "r" if isinstance(mode, str) else _reads(flags)
    text = os.fsdecode(name)
    if not reads or text.endswith(_CODE):
        return
    folder, root, found = into
    path = Path(os.path.abspath(os.path.join(folder, text)))
    inside = path.is_relative_to(folder) or Path(os.path.realpath(path)).is_relative_to(root)
    if inside and path not in found and path.is_file():
        found[path] = stamp_of(os.fspath(path))


def _reads(flags: Any) -> bool:
    return isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY
