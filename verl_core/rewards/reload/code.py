"""Which code a generation runs, and whether another is installed by now."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
from dataclasses import dataclass, replace
from pathlib import Path

from verl_core.rewards.reload.digests import digest_of
from verl_core.rewards.reload.fingerprint import Stamp, stamp_of


@dataclass(frozen=True)
class Code:
    """The code of one provider class, as it was when it was asked for.

    Args:
        dist: the distribution that brings it, or None (a node beside the config).
        version: of that.
        file: the class's own module.
        stamp, digest: of that file.
    """

    dist: str | None
    version: str | None
    file: Path | None
    stamp: Stamp | None
    digest: str | None

    @classmethod
    def of(cls, provider: type, dist: str | None) -> Code:
        """As it lies on the disk now."""
        try:
            found = inspect.getsourcefile(provider)
        except (TypeError, OSError):
            found = None
        return cls(dist, None, None if found is None else Path(found), None, None).now()

    def now(self) -> Code:
        """The same code as the disk has it now."""
        version = None
        if self.dist is not None:
            try:
                version = importlib.metadata.version(self.dist)
            except importlib.metadata.PackageNotFoundError:
                version = None
        if self.file is None:
            return replace(self, version=version)
        try:
            stamp = stamp_of(os.fspath(self.file))
            same = stamp == self.stamp
            digest = self.digest if same else digest_of(self.file)
        except OSError:
            return replace(self, version=version, stamp=None, digest=None)
        return replace(self, version=version, stamp=stamp, digest=digest)

    def __str__(self) -> str:
        if self.dist is None:
            return "" if self.file is None else self.file.name
        return f"{self.dist} {self.version or '(not installed any more)'}"

    def change(self, *, restarts: bool) -> str | None:
        """What is installed now in the place of this, for people; None where it is the same.

        Args:
            restarts: whether `reload` starts a process that would run it.
        """
        now = self.now()
        if now.version == self.version and now.digest == self.digest:
            return None
        if now.version != self.version:
            said = f"{now} is installed now, and this generation runs {self}"
        else:
            said = f"{self.file} was changed, and this generation runs the code of before"
        if restarts:
            return f"{said}: `verl-reward reload` starts a worker with it"
        return f"{said}: start the run again, or mount it with execution: process and reload it"
