"""What a checkpoint keeps of the rewards, in forms that `torch.load` takes without pickled code.

Arrays of numbers become bytes with their shape and type; all else in a state is plain already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from verl_core.rewards.engine import RewardEngine
from verl_core.trainer.checkpoint import Checkpoint

#: The name of its file in a checkpoint, without ``.pt``.
NAME = "rewards"
_ARRAY = "__array__"


def saved(engine: RewardEngine) -> Any:
    """`RewardEngine.state`, to be saved."""
    return _packed(engine.state())


def restore(engine: RewardEngine, checkpoint: Checkpoint) -> None:
    """Let `engine` go on from what `saved` gave. A checkpoint without it is from before there was
    anything to keep: the engine begins anew.

    Raises:
        ConfigError: it holds what a mount or the policy of today's config cannot take.
        ProviderError: a provider cannot take its state.
    """
    if checkpoint.has(NAME):
        engine.load_state(_unpacked(checkpoint.load(NAME)))


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = np.frombuffer(np.ascontiguousarray(value).tobytes(), dtype=np.uint8)
        return {_ARRAY: (value.dtype.str, value.shape, torch.from_numpy(data.copy()))}
    if isinstance(value, Mapping):
        return {key: _packed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_packed(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_packed(item) for item in value)
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {_ARRAY}:
        dtype, shape, data = value[_ARRAY]
        return np.frombuffer(data.numpy().tobytes(), dtype=dtype).reshape(shape).copy()
    if isinstance(value, dict):
        return {key: _unpacked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_unpacked(item) for item in value)
    return value
