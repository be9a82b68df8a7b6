"""``safety``: a gate that looks for forbidden words and says where they stand.

Importing it loads no pyahocorasick: the provider does so in ``setup()``.
"""

from __future__ import annotations

from collections.abc import Iterator

from verl_reward_safety.provider import Safety, SafetyConfig
from verl_reward_sdk import hookimpl

VERL_REWARD_API = 1

__all__ = ["Safety", "SafetyConfig"]


@hookimpl
def verl_reward_providers() -> Iterator[type[Safety]]:
    yield Safety
