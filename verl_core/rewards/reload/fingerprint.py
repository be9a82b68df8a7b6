"""Have these files changed? Answered with one `stat` a file, as leases ask for it.

A stamp is device, inode, size, mtime and ctime: a forced mtime moves the ctime, a rename that
reuses an inode too. What a file system's clock cannot tell apart is compared by content: files
that were written less than `YOUNG` seconds before their stamp was taken are hashed until the
clock has moved on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from verl_core.rewards.reload.digests import digest_of

#: Seconds: the coarsest clock of a file system that is in use (FAT; NFS of old servers has 1 s).
YOUNG = 2.0

Stamp: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, mtime and ctime in ns."""
Stat: TypeAlias = Callable[[str], os.stat_result]

_SHARE = 20  # hashing a young file again takes at most one part in so many of the time


class Missing(Exception):
    """A watched file is not there (or cannot be looked at).

    Args:
        path: the file.
        why: the system's words.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


@dataclass(frozen=True)
class Scan:
    """How a set of assets stood at one moment.

    Args:
        files: path -> stamp of each file, those inside of folders too.
        folders: path -> stamp of each folder.
        reals: asset -> its real path, symbolic links resolved.
    """

    files: Mapping[str, Stamp]
    folders: Mapping[str, Stamp]
    reals: Mapping[str, str]

    def same_files(self, other: Scan) -> bool:
        """Whether the files, and what the links lead to, are those of `other`."""
        return self.files == other.files and self.reals == other.reals


def stamp_of(path: str, stat: Stat = os.stat) -> Stamp:
    """Raises `OSError` where there is nothing."""
    found = stat(path)
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


def is_hidden(name: str) -> bool:
    """Whether a name in a folder is an editor's or Python's own: it belongs to no asset."""
    return (
        name.startswith(".")
        or name.endswith(("~", ".swp", ".swo", ".swx", ".pyc"))
        or (name.startswith("#") and name.endswith("#"))
        or name in ("__pycache__", "4913")  # vim tries whether it may write with this name
    )


def files_in(folder: str) -> Iterator[tuple[str, bool]]:
    """``(path, is_folder)`` of what is in a folder, itself first, sorted; links are followed."""
    seen: set[str] = set()
    stack = [folder]
    while stack:
        here = stack.pop()
        real = os.path.realpath(here)
        if real in seen:  # a link to a folder above it
            continue
        seen.add(real)
        yield here, True
        for name in sorted(os.listdir(here)):
            if is_hidden(name):
                continue
            path = os.path.join(here, name)
            if os.path.isdir(path):
                stack.append(path)
            else:
                yield path, False


def scan(assets: Sequence[str], extra: Sequence[str] = (), stat: Stat = os.stat) -> Scan:
    """Look at every file of `assets` (files or folders), and of `extra`, which may be missing.

    Raises:
        Missing: an asset is not there.
    """
    files: dict[str, Stamp] = {}
    folders: dict[str, Stamp] = {}
    reals: dict[str, str] = {}
    path = ""
    try:
        for asset in assets:
            path = asset
            reals[asset] = os.path.realpath(asset)
            if not os.path.isdir(asset):
                files[asset] = stamp_of(asset, stat)
                continue
            for path, is_folder in files_in(asset):
                (folders if is_folder else files)[path] = stamp_of(path, stat)
    except OSError as error:
        raise Missing(path, error.strerror or str(error)) from error
    for path in extra:
        try:
            files[path] = stamp_of(path, stat)
        except OSError:
            continue
    return Scan(files, folders, reals)


class Watched:
    """A set of assets, and how it stood when it was taken. From one thread at a time, but `calm`.

    Args:
        assets: files and folders, absolute.
        stat: tells a path's stamp; another than `os.stat` cuts times short, as a coarse file
            system does.
    """

    def __init__(self, assets: Sequence[str], stat: Stat = os.stat) -> None:
        self.assets = tuple(assets)
        self._stat = stat
        self._scan: Scan | None = None
        self._stamps: tuple[tuple[str, Stamp], ...] = ()
        self._young: dict[str, str | None] = {}
        self._young_until = 0.0
        self._next_hash = 0.0
        self._settled = False

    def took(self, found: Scan, digests: Mapping[str, str] | None) -> None:
        """From now on changes are those against `found`.

        Args:
            found: taken just now.
            digests: path -> SHA-256 of its files; those that are not named are not compared by
                content. None: it is known already that these are not the files in use.
        """
        now = time.time()
        edge = int((now - YOUNG) * 1e9)
        young = {path for path, stamp in found.files.items() if stamp[3] > edge or stamp[4] > edge}
        self._scan = found
        self._young = {path: (digests or {}).get(path) for path in young}
        folders = any(s[3] > edge or s[4] > edge for s in found.folders.values())
        self._young_until = time.monotonic() + YOUNG
        self._next_hash = 0.0
        self._settled = digests is not None and not young and not folders
        self._stamps = (*found.files.items(), *found.folders.items())
        if digests is None:
            self._stamps = ()

    def calm(self) -> bool:
        """Whether nothing moved, at one `stat` a file; False where a closer look is needed."""
        if not self._settled:
            return False
        stat = self._stat
        try:
            for path, stamp in self._stamps:
                s = stat(path)
                if (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) != stamp:
                    return False
        except OSError:
            return False
        return True

    def changed(self) -> bool:
        """The closer look: whether a file changed, came or went. Hidden names do not count.

        Raises:
            Missing: an asset is not there.
        """
        if self._scan is None or not self._stamps:
            return True
        extra = [path for path in self._scan.files if path not in self._scan.reals]
        found = scan(self.assets, extra, self._stat)
        if not found.same_files(self._scan):
            return True
        self._scan = found
        self._stamps = (*found.files.items(), *found.folders.items())
        return not self._settled and self._moved_unseen()

    def _moved_unseen(self) -> bool:
        """Whether a young file has another content; after `YOUNG` seconds for the last time."""
        now = time.monotonic()
        over = now >= self._young_until
        if not over and now < self._next_hash:
            return False
        try:
            for path, digest in self._young.items():
                if digest is not None and digest_of(Path(path)) != digest:
                    return True
        except OSError:
            return True
        ended = time.monotonic()
        self._next_hash = ended + _SHARE * (ended - now)
        self._settled = over
        return False
