"""Files that are written whole, and errors of writing that name the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl_reward_sdk import VerlRewardError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Around what writes `path`, or files below it: the system's error says "No space left on
    device" and not where.

    Raises:
        VerlRewardError: in the place of an `OSError`, with the file and the reason.
    """
    try:
        yield
    except OSError as error:
        raise VerlRewardError(f"{path} could not be written: {error.strerror or error}") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, in one rename: a reader finds the old one or the new one.

    Raises:
        VerlRewardError: it could not be written. What was there before still is.
    """
    draft = path.with_name(f".{path.name}.draft")
    with naming(path):
        try:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
            os.replace(draft, path)
        except OSError:
            if not draft.is_dir():
                draft.unlink(missing_ok=True)
            raise
