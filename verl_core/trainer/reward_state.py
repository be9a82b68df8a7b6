"""What a checkpoint keeps of the rewards, in forms that `torch.load` takes without pickled code.

Arrays of numbers become bytes with their shape and type; all else in a state is plain already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.revisions import Record
from verl_core.trainer.checkpoint import Checkpoint, CheckpointError

#: The name of its file in a checkpoint, without ``.pt``.
NAME = "rewards"
_ARRAY = "__array__"
_WEIGHTS = "weights"


def saved(engine: RewardEngine) -> Any:
    """`RewardEngine.state` and the newest revision of the weights, to be saved."""
    state = engine.state()
    if engine.store is not None:
        state[_WEIGHTS] = engine.store.newest().as_dict()
    return _packed(state)


def weights(checkpoint: Checkpoint) -> Record | None:
    """The newest revision of the weights when `checkpoint` was made; None where it keeps none, as
    before weights were kept.

    Raises:
        CheckpointError: it cannot be read.
    """
    state = _unpacked(checkpoint.load(NAME)) if checkpoint.has(NAME) else {}
    if not isinstance(state, dict) or _WEIGHTS not in state:
        return None
    try:
        return Record.from_dict(state[_WEIGHTS])
    except ValueError as error:
        raise CheckpointError(
            f"the weights in {checkpoint.path} cannot be used: {error}"
        ) from error


def restore(engine: RewardEngine, checkpoint: Checkpoint) -> None:
    """Let `engine` go on from what `saved` gave. A checkpoint without it is from before there was
    anything to keep: the engine begins anew.

    Raises:
        ConfigError: it holds what a mount or the policy of today's config cannot take.
        ProviderError: a provider cannot take its state.
        CheckpointError: it cannot be read.
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
