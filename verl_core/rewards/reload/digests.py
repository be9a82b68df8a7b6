"""SHA-256 of files, and the manifests that people lay beside them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

BLOCK = 1 << 20
#: The names of a folder's list of digests, and the ending of a single file's.
SUMS, ENDING = "SHA256SUMS", ".sha256"

_LINE = re.compile(r"^\\?([0-9a-fA-F]{64})(?: [ *](.+))?$")
_MAX_MANIFEST = 1 << 20


class WrongDigest(Exception):
    """A file is not what its manifest says, or the manifest cannot be read."""


def digest_of(path: Path) -> str:
    """SHA-256 of a file's content, in hex. Raises `OSError`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def combined(digests: Mapping[str, str]) -> str:
    """One digest of a folder: SHA-256 of its files' ``DIGEST  NAME`` lines, sorted by name."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def manifests_of(file: str) -> Iterator[str]:
    """Where a manifest of `file` may lie: beside it."""
    yield file + ENDING
    yield os.path.join(os.path.dirname(file), SUMS)


def verify(file: str, digest: str, manifests: Mapping[str, str]) -> None:
    """Hold a file's digest against the manifests that name it.

    Args:
        file: its path.
        digest: its SHA-256.
        manifests: path -> text, of those that are there.

    Raises:
        WrongDigest: one names another digest, or is no manifest.
    """
    name = os.path.basename(file)
    for path in manifests_of(file):
        if path not in manifests:
            continue
        listed = _listed(path, manifests[path])
        wanted = listed.get(name)
        if path.endswith(ENDING) and wanted is None:
            wanted = listed.get("", next(iter(listed.values()), None))
        if wanted is not None and wanted != digest:
            raise WrongDigest(
                f"{file} has the SHA-256 {digest[:12]}…, and {path} says {wanted[:12]}…"
            )


def read_manifest(path: str) -> str | None:
    """Its text; None where there is none.

    Raises:
        WrongDigest: it is no text, or too large.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_MANIFEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WrongDigest(f"{path} cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_MANIFEST:
        raise WrongDigest(f"{path} is no manifest: it has more than {_MAX_MANIFEST} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongDigest(f"{path} is no manifest: it is not UTF-8") from error


def _listed(path: str, text: str) -> dict[str, str]:
    """Name -> digest; a digest alone has the name ``""``."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise WrongDigest(
                f"{path}:{number}: expected a SHA-256 and a name, as sha256sum has it"
            )
        digest, name = match.groups()
        if line.startswith("\\"):
            name = (name or "").replace("\\n", "\n").replace("\\\\", "\\")
        found[os.path.normpath(name) if name else ""] = digest.lower()
    return found
