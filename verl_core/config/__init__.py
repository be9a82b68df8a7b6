"""The run's YAML: frozen models that know where each value was written."""

from __future__ import annotations

from verl_core.config.mount import DefaultScore, MountConfig, Threshold
from verl_core.config.rewards import FusionConfig, RewardsConfig
from verl_core.config.run import RunConfig, load_run_config
from verl_core.config.weight import WeightSchedule

__all__ = [
    "DefaultScore",
    "FusionConfig",
    "MountConfig",
    "RewardsConfig",
    "RunConfig",
    "Threshold",
    "WeightSchedule",
    "load_run_config",
]
