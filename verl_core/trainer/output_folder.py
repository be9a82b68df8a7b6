"""Whether a folder can be made: asked before a model is loaded, and without leaving one behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from verl_reward_sdk import ConfigError

HINT = "name a folder that exists, or can be made, and that may be written"


def check_output(output: Path, name: str = ".") -> None:
    """Refuse an `output` that cannot be made, or in which the folder `name` cannot be.

    It is tried beside the place, in a hidden folder that is removed again: `output` itself may be
    made by another run at the same time.

    Raises:
        ConfigError: for the setting `output`, with the reason.
    """
    there = output
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        raise refused(output, _what(there))
    missing = [*output.parts[len(there.parts) :], name]
    try:
        with tempfile.TemporaryDirectory(
            dir=there, prefix=".verl-reward-", ignore_cleanup_errors=True
        ) as probe:
            Path(probe, *(part for part in missing if part != "..")).mkdir(
                parents=True, exist_ok=True
            )
    except (OSError, ValueError) as error:  # ValueError: no file name, as one with a NUL
        raise refused(output, getattr(error, "strerror", None) or str(error)) from error


def refused(output: Path, why: str) -> ConfigError:
    """The error of an `output` in which no folder can be made."""
    return ConfigError(f"nothing can be made in {str(output)!r}: {why}", path="output", hint=HINT)


def _what(path: Path) -> str:
    """What `path`, which is no folder, is."""
    if not os.path.lexists(path):
        return f"{str(path)!r} is not there"
    if os.path.islink(path):
        return f"{str(path)!r} is a link to {os.readlink(path)!r}, which leads to no folder"
    return f"{str(path)!r} is no folder"
