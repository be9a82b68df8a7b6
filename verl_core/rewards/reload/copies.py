"""Assets as they stand still: copied to a private folder, hashed, and read again.

A generation loads from its copies alone, so that nothing that happens to the files later can reach
it: a memory map of a file that somebody truncates would end the process with SIGBUS.

The copies have the paths of their originals below the private folder: what a file names beside
itself is found, and a message that names a copy is put right by taking the folder's name out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_core.rewards.reload.digests import (
    BLOCK,
    combined,
    digest_of,
    manifests_of,
    read_manifest,
    verify,
)
from verl_core.rewards.reload.fingerprint import Missing, Scan, Stamp, Stat, scan, stamp_of
from verl_core.rewards.reload.private import ROOT, PrivateRoot

#: Seconds between two looks that must agree before a changed file is taken.
SETTLE = 0.2


class Moving(Exception):
    """The files never stood still for as long as there was time."""


@dataclass(frozen=True)
class Taken:
    """A consistent set of assets.

    Args:
        scan: how they stood.
        digests: asset -> SHA-256; of a folder that of its files' list.
        files: path -> SHA-256 of every file.
        key: of their content and of the manifests beside them: the same key, the same outcome.
        manifests: path -> text of the manifests beside them.
        folder: where the copies are; None where none were asked for.
    """

    scan: Scan
    digests: Mapping[str, str]
    files: Mapping[str, str]
    key: tuple[str, ...]
    manifests: Mapping[str, str] = field(repr=False)
    folder: Path | None = None

    def check(self) -> None:
        """Hold every file against the manifests.

        Raises:
            WrongDigest: one is not what its manifest says.
        """
        for path, digest in self.files.items():
            verify(path, digest, self.manifests)

    def private(self, path: str) -> Path | None:
        """The copy of an asset, or of what lies in one; None where it was not copied."""
        if self.folder is None:
            return None
        inside = any(path == a or path.startswith(a.rstrip("/") + "/") for a in self.digests)
        return below(self.folder, path) if inside else None

    def drop(self) -> None:
        """Remove the copies."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def below(folder: Path, path: str) -> Path:
    """Where the copy of the absolute `path` lies."""
    return Path(f"{folder}{path}")


def take(
    assets: Sequence[str],
    *,
    name: str,
    copy: bool,
    settle: float = SETTLE,
    first_waits: bool = True,
    until: Callable[[], bool] = lambda: False,
    root: PrivateRoot = ROOT,
    stat: Stat = os.stat,
) -> Taken:
    """Wait until the assets stand still, and take them.

    Args:
        assets: files and folders, absolute and normalised.
        name: the mount's, for the folder.
        copy: whether copies are made; else they are hashed where they lie.
        settle: seconds between two looks that must agree.
        first_waits: False to take them at once where they do not move meanwhile (at the start).
        until: whether to give up.
        root: where copies are made.
        stat: tells a path's stamp.

    Raises:
        Missing: an asset is not there.
        Moving: `until` said so before they stood still.
        OSError: a copy cannot be made.
        WrongDigest: a manifest cannot be read.
    """
    waits = first_waits
    while True:
        found = _still(assets, settle, until, stat) if waits else scan(assets, stat=stat)
        folder = root.folder(name) if copy else None
        try:
            taken = _taken(found, folder, stat)
        except BaseException as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, _Moved):
                if until():
                    raise Moving from error
                waits = True
                continue
            raise
        return taken


class _Moved(Exception):
    """A file changed while it was taken."""


def _still(assets: Sequence[str], settle: float, until: Callable[[], bool], stat: Stat) -> Scan:
    """Two looks, `settle` seconds apart, that agree."""
    before = scan(assets, stat=stat)
    while True:
        if until():
            raise Moving
        time.sleep(settle)
        after = scan(assets, stat=stat)
        if after.same_files(before):
            return after
        before = after


def _taken(found: Scan, folder: Path | None, stat: Stat) -> Taken:
    # Each asset's links are resolved once, before the first copy: a set is never a mix of two.
    files: dict[str, str] = {}
    for path in found.files:
        source = _resolved(path, found)
        try:
            digest = digest_of(source) if folder is None else _copied(source, below(folder, path))
            if folder is not None and digest_of(source) != digest:
                raise _Moved(path)
        except FileNotFoundError as error:
            raise _Moved(path) from error
        except IsADirectoryError as error:
            raise _Moved(path) from error
        files[path] = digest
    if folder is not None:
        for path in found.folders:
            below(folder, path).mkdir(parents=True, exist_ok=True)
    manifests, beside = _manifests(files, stat)
    try:
        after = scan(tuple(found.reals), stat=stat)
    except Missing as error:
        raise _Moved(error.path) from error
    if not after.same_files(found):
        raise _Moved
    sums = sorted(hashlib.sha256(text.encode()).hexdigest() for text in manifests.values())
    digests = {asset: _digest(asset, files) for asset in found.reals}
    return Taken(
        replace(found, files={**beside, **found.files}),
        digests,
        files,
        (*digests.values(), *sums),
        manifests,
        folder,
    )


def _manifests(files: Iterable[str], stat: Stat) -> tuple[dict[str, str], dict[str, Stamp]]:
    """Text and stamp of each manifest beside these files."""
    texts: dict[str, str] = {}
    stamps: dict[str, Stamp] = {}
    for path in dict.fromkeys(name for file in files for name in manifests_of(file)):
        try:
            stamp = stamp_of(path, stat)
        except OSError:
            continue
        text = read_manifest(path)
        if text is not None:
            texts[path], stamps[path] = text, stamp
    return texts, stamps


def _resolved(path: str, found: Scan) -> Path:
    """`path` by way of its asset's real path, as that was when the set was looked at."""
    for asset, real in found.reals.items():
        if path == asset:
            return Path(real)
        if path.startswith(asset.rstrip("/") + "/"):
            return Path(real, os.path.relpath(path, asset))
    return Path(path)


def _copied(source: Path, target: Path) -> str:
    """Copy a file; its SHA-256 on the way."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while block := reader.read(BLOCK):
            digest.update(block)
            writer.write(block)
    return digest.hexdigest()


def _digest(asset: str, files: Mapping[str, str]) -> str:
    if asset in files:
        return files[asset]
    start = asset.rstrip("/") + "/"
    inside = {p[len(start) :]: digest for p, digest in files.items() if p.startswith(start)}
    return combined(inside)
