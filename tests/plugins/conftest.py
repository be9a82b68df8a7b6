"""What the tests of the plugin registry share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_core.plugins import PluginRegistry
from verl_core.plugins.memory import FailureMemory

#: A module that provides the rewards NAMES.
MODULE = """
from verl_reward_sdk import RewardProvider, hookimpl

VERL_REWARD_API = 1
NAMES = {names!r}

@hookimpl
def verl_reward_providers():
    for reward in NAMES:
        yield type("Reward", (RewardProvider,), {{"name": reward}})
"""


@pytest.fixture
def module_of() -> Callable[..., str]:
    """The source of a good plugin module for the given reward names."""
    return lambda *names: MODULE.format(names=names)


@pytest.fixture
def memory_file(tmp_path: Path) -> Path:
    """Where the registries of a test remember failures."""
    return tmp_path / "cache" / "plugin-failures.json"


@pytest.fixture
def registry(memory_file: Path) -> Callable[..., PluginRegistry]:
    """Makes a fresh registry, as a new process would; keywords are environment variables."""

    def make(**env: Any) -> PluginRegistry:
        return PluginRegistry(env=env, memory=FailureMemory(memory_file))

    return make
