"""The contract of verl-reward: what a plugin imports, and nothing else.

Names are loaded on first use (PEP 562), so that ``import verl_reward_sdk`` costs no numpy and no
pydantic: the command line lists plugins without either.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from verl_reward_sdk.version import PLUGIN_API_VERSION, __version__

if TYPE_CHECKING:
    from verl_reward_sdk.batch import RewardBatch
    from verl_reward_sdk.errors import (
        ConfigError,
        ContractError,
        PluginError,
        ProviderError,
        ProviderTimeout,
        RewardError,
        VerlRewardError,
        did_you_mean,
        nearest,
    )
    from verl_reward_sdk.hookspecs import hookimpl, hookspec
    from verl_reward_sdk.protocols import (
        CommandRegistry,
        Fused,
        FusionPolicy,
        MountInfo,
        RewardTableView,
    )
    from verl_reward_sdk.provider import (
        AssetPath,
        AsyncRewardProvider,
        ProviderConfig,
        RewardProvider,
    )
    from verl_reward_sdk.result import RewardResult, Severity
    from verl_reward_sdk.turns import Message, Prompt

_HOME = {
    "batch": ("RewardBatch",),
    "errors": (
        "ConfigError",
        "ContractError",
        "PluginError",
        "ProviderError",
        "ProviderTimeout",
        "RewardError",
        "VerlRewardError",
        "did_you_mean",
        "nearest",
    ),
    "hookspecs": ("hookimpl", "hookspec"),
    "protocols": ("CommandRegistry", "Fused", "FusionPolicy", "MountInfo", "RewardTableView"),
    "provider": ("AssetPath", "AsyncRewardProvider", "ProviderConfig", "RewardProvider"),
    "result": ("RewardResult", "Severity"),
    "turns": ("Message", "Prompt"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "PLUGIN_API_VERSION",
    "AssetPath",
    "AsyncRewardProvider",
    "CommandRegistry",
    "ConfigError",
    "ContractError",
    "Fused",
    "FusionPolicy",
    "Message",
    "MountInfo",
    "PluginError",
    "Prompt",
    "ProviderConfig",
    "ProviderError",
    "ProviderTimeout",
    "RewardBatch",
    "RewardError",
    "RewardProvider",
    "RewardResult",
    "RewardTableView",
    "Severity",
    "VerlRewardError",
    "__version__",
    "did_you_mean",
    "hookimpl",
    "hookspec",
    "nearest",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'verl_reward_sdk' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"verl_reward_sdk.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
