"""Paths as a person would type them."""

from __future__ import annotations

import os
from pathlib import Path


def near(path: Path) -> str:
    """`path` as one would type it here: relative where it lies under the current folder."""
    # Not resolved: an environment's python is a link out of it.
    found = os.path.relpath(path)
    return str(path) if found.startswith("..") else found
