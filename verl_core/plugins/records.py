"""What is known of one plugin under one name."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

#: Entry-point group of rewards: the name is the reward's name, the value its module.
REWARDS = "verl_reward"
#: Entry-point group of everything else: policies, nodes, commands, routes, observers.
EXTENSIONS = "verl_reward_extensions"

State = Literal["available", "loaded", "broken", "incompatible", "conflict", "disabled"]


@dataclass(frozen=True)
class PluginRecord:
    """One name that one installed distribution offers.

    Args:
        name: the normalised name, as a config may write it.
        state: ``available`` (not imported yet), ``loaded``, ``broken`` (an import failed, now or
            earlier), ``incompatible`` (another SDK or plugin API), ``conflict`` (two distributions
            offer the name), ``disabled`` (by the environment).
        reason: why it is in a state that is not fine; None where it is.
        dist: the distribution's name.
        version: the distribution's version.
        api: the plugin API that its module declares; None before it is loaded.
        origin: the entry point's value, a module.
    """

    name: str
    state: State
    reason: str | None
    dist: str
    version: str
    api: int | None
    origin: str

    @property
    def source(self) -> str:
        """``verl-reward-overlap 0.1.0``."""
        return f"{self.dist} {self.version}"

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, keys in the order of the fields."""
        return asdict(self)


def normalise(name: str) -> str:
    """``Llm_Judge`` -> ``llm-judge``: case and runs of ``-``, ``_``, ``.`` do not tell names apart.

    The rule of Python's package index, so that names of rewards and of distributions follow one.
    """
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
