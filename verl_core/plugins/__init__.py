"""Plugins: entry points -> records -> loaded classes.

`PluginRegistry` lists what is installed from metadata alone and imports a plugin when something
names it. Nothing here imports numpy, pydantic or torch; only a plugin that is loaded may.
"""

from __future__ import annotations

from verl_core.plugins.records import EXTENSIONS, REWARDS, PluginRecord, normalise
from verl_core.plugins.registry import PluginRegistry

__all__ = ["EXTENSIONS", "REWARDS", "PluginRecord", "PluginRegistry", "normalise"]
