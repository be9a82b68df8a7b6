"""Rewards: mounts -> scores -> fusion.

Names are loaded on first use (PEP 562): the command line reads weights without numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_core.rewards.engine import RewardEngine
    from verl_core.rewards.lease import Lease
    from verl_core.rewards.scoring import Scoring
    from verl_core.rewards.streaming import StreamedScoring
    from verl_core.rewards.table import MountColumn, RewardTable
    from verl_core.rewards.weights import WeightSnapshot, WeightStore

_MODULE_OF = {
    "Lease": "lease",
    "MountColumn": "table",
    "RewardEngine": "engine",
    "RewardTable": "table",
    "Scoring": "scoring",
    "StreamedScoring": "streaming",
    "WeightSnapshot": "weights",
    "WeightStore": "weights",
}

__all__ = [
    "Lease",
    "MountColumn",
    "RewardEngine",
    "RewardTable",
    "Scoring",
    "StreamedScoring",
    "WeightSnapshot",
    "WeightStore",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'verl_core.rewards' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"verl_core.rewards.{module}"), name)
    globals()[name] = value
    return value
