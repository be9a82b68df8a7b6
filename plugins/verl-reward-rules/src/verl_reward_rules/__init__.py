"""``rules``: a score from rules in a YAML file, with points and reasons.

Importing it loads neither RE2 nor PyYAML: they are needed once a rule file is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from verl_reward_rules.provider import Rules, RulesConfig
from verl_reward_sdk import hookimpl

VERL_REWARD_API = 1

__all__ = ["Rules", "RulesConfig"]


@hookimpl
def verl_reward_providers() -> Iterator[type[Rules]]:
    yield Rules
