"""The project's own plugins, the only ones that an error may tell a user to install.

A name guessed from a reward's name could be anybody's package.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import verl_core
from verl_core.plugins.records import normalise

#: Distribution -> the rewards it brings.
FIRST_PARTY: dict[str, tuple[str, ...]] = {
    "verl-reward-rules": ("rules",),
    "verl-reward-overlap": ("bleu", "chrf", "rouge", "ter"),
    "verl-reward-safety": ("safety",),
    "verl-reward-classifier": ("classifier",),
    "verl-reward-judge": ("judge",),
    "verl-reward-human": ("human",),
    "verl-reward-math": ("math",),
}

#: Those that this version ships; a test compares it with the folders under ``plugins/``.
SHIPPED = ("verl-reward-rules", "verl-reward-overlap", "verl-reward-safety")


def bringing(name: str) -> str | None:
    """The first-party distribution that brings the reward `name`, or None."""
    name = normalise(name)
    return next((dist for dist, names in FIRST_PARTY.items() if name in names), None)


def names() -> list[str]:
    """Every reward of a distribution that this version ships."""
    return [name for dist in SHIPPED for name in FIRST_PARTY[dist]]


def install_command(dist: str) -> str:
    """How to install a shipped distribution: from the checkout, until it is published."""
    folder = Path(verl_core.__file__).resolve().parent.parent / "plugins" / dist
    if not (folder / "pyproject.toml").is_file():
        return f"pip install ./plugins/{dist}"
    relative = os.path.relpath(folder)
    return f"pip install {folder if relative.startswith('..') else f'./{relative}'}"


def advice(name: str, installed: Iterable[str]) -> str | None:
    """What to do for a first-party reward that is not there, or None for any other name.

    Args:
        name: the reward that was asked for.
        installed: names of the distributions whose entry points were found.
    """
    dist = bringing(name)
    if dist is None:
        return None
    if dist not in SHIPPED:
        return f"it will come with {dist}, which this version does not have yet"
    if dist in {normalise(other) for other in installed}:
        return f"a later version of {dist} brings it; the installed one does not"
    return f"it comes with {dist}: {install_command(dist)}"
