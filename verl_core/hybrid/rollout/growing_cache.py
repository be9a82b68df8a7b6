"""A key-value cache that writes into room reserved once.

`DynamicCache` copies all keys and values with each token it appends: at 32 rows of a 135M model
that is half of a decoding step on a CPU.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class ReservedLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped here
    """A `DynamicLayer` whose `keys` and `values` are views of larger buffers once `reserve` ran.

    Shapes: (rows, heads, tokens, head size), as in `DynamicLayer`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._buffers: tuple[Tensor, Tensor] | None = None

    def reserve(self, rows: Tensor, capacity: int) -> None:
        """Keep the rows named by `rows` (repeats allowed) and make room for `capacity` tokens."""
        length = self.keys.shape[2]
        buffers = []
        for states in (self.keys, self.values):
            _, heads, _, size = states.shape
            buffer = states.new_empty((len(rows), heads, capacity, size))
            buffer[:, :, :length] = states.index_select(0, rows)
            buffers.append(buffer)
        self._buffers = (buffers[0], buffers[1])
        self._view(length)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append one or more tokens' keys and values; returns those of all tokens so far."""
        if self._buffers is None:
            appended: tuple[Tensor, Tensor] = super().update(
                key_states, value_states, *args, **kwargs
            )
            return appended
        start = self.keys.shape[2]
        end = start + key_states.shape[2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self._view(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows named by `beam_idx`, which ascend, without a second buffer."""
        if self._buffers is None:
            super().reorder_cache(beam_idx)
            return
        length = self.keys.shape[2]
        for buffer, states in zip(self._buffers, (self.keys, self.values), strict=True):
            buffer[: len(beam_idx), :, :length] = states.index_select(0, beam_idx)
        self._buffers = (self._buffers[0][: len(beam_idx)], self._buffers[1][: len(beam_idx)])
        self._view(length)

    def _view(self, length: int) -> None:
        assert self._buffers is not None
        self.keys = self._buffers[0][:, :, :length]
        self.values = self._buffers[1][:, :, :length]


def new_cache(config: Any) -> tuple[DynamicCache, bool]:
    """``(cache, reserved)``: with `ReservedLayer`s where every layer of the model is a plain one.

    Models with sliding windows, linear attention or other layers of their own keep
    `DynamicCache`'s layers.
    """
    cache = DynamicCache(config=config)
    reserved = len(cache.layers) > 0 and all(type(layer) is DynamicLayer for layer in cache.layers)
    if reserved:
        cache.layers = [ReservedLayer() for _ in cache.layers]
    return cache, reserved


def spread(cache: DynamicCache, rows: Tensor, capacity: int) -> None:
    """Make row i of the cache a copy of its row ``rows[i]``, with room for `capacity` tokens."""
    for layer in cache.layers:
        if isinstance(layer, ReservedLayer):
            layer.reserve(rows, capacity)
        else:
            layer.reorder_cache(rows)


def keep_rows(cache: DynamicCache, rows: Tensor) -> None:
    """Drop every row of the cache but `rows`, which ascend."""
    for layer in cache.layers:
        layer.reorder_cache(rows)
