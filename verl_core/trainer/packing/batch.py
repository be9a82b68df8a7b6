"""The token ids of some responses, and what a layout makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """B prompts with their responses, ragged.

    Per-token results are packed: a tensor (N,), N = all response tokens, row after row.
    `to_padded` makes (B, R) of one.

    Args:
        prompt_ids: token ids a row, none empty.
        response_ids: token ids a row; an empty response has no tokens and no results.
        groups: (B,) int64; rows with the same number have the same prompt.
    """

    prompt_ids: Sequence[NDArray[np.int64]]
    response_ids: Sequence[NDArray[np.int64]]
    groups: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.prompt_ids) == len(self.response_ids) == len(self.groups):
            raise ValueError(
                f"{len(self.prompt_ids)} prompts, {len(self.response_ids)} responses and "
                f"{len(self.groups)} groups: one of each a row is needed"
            )
        if any(len(ids) == 0 for ids in self.prompt_ids):
            raise ValueError("a prompt is empty: nothing predicts the first response token")

    def __len__(self) -> int:
        return len(self.response_ids)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(B,) response tokens a row."""
        return np.array([len(ids) for ids in self.response_ids], dtype=np.int64)

    @cached_property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """(B,) prompt tokens a row."""
        return np.array([len(ids) for ids in self.prompt_ids], dtype=np.int64)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """(B + 1,): row i's tokens are packed at ``offsets[i]`` to ``offsets[i + 1]``."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @property
    def tokens(self) -> int:
        """N, all response tokens."""
        return int(self.offsets[-1])

    @cached_property
    def row_of_token(self) -> Tensor:
        """(N,) int64, the row of each packed token."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.lengths))

    @cached_property
    def column_of_token(self) -> Tensor:
        """(N,) int64, each packed token's place in its response."""
        columns = np.arange(self.tokens) - np.repeat(self.offsets[:-1], self.lengths)
        return torch.from_numpy(columns)

    @cached_property
    def targets(self) -> Tensor:
        """(N,) int64, the response tokens, packed."""
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *self.response_ids]))

    def take(self, rows: NDArray[np.int64]) -> TokenBatch:
        """The rows named by `rows`, in that order."""
        return TokenBatch(
            prompt_ids=[self.prompt_ids[row] for row in rows],
            response_ids=[self.response_ids[row] for row in rows],
            groups=self.groups[rows],
        )

    def to_padded(self, packed: Tensor, width: int | None = None) -> Tensor:
        """(N,) values as (B, `width`), 0 behind each response's end; gradients flow through.

        Args:
            packed: (N,) a value a token.
            width: columns; the longest response's where None.
        """
        if width is None:
            width = int(self.lengths.max(initial=0))
        padded = packed.new_zeros((len(self), width))
        place = (self.row_of_token.to(packed.device), self.column_of_token.to(packed.device))
        return padded.index_put(place, packed)

    def to_packed(self, padded: Tensor) -> Tensor:
        """(N,) of a (B, R) tensor: its values at the response tokens."""
        return padded[self.row_of_token.to(padded.device), self.column_of_token.to(padded.device)]


@dataclass(frozen=True)
class ModelInputs:
    """S sequences of L tokens, padded on the right, ready for a model.

    Args:
        input_ids: (S, L) int64.
        position_ids: (S, L) int64.
        mask: (S, 1, L, L) bool, True where a query (third) may see a key (last), or None for a
            plain causal model: padding stands on the right, where no token of a response looks.
        predict: (N,) int64, places in the flattened (S * L) whose hidden state predicts each
            packed response token.
    """

    input_ids: Tensor
    position_ids: Tensor
    mask: Tensor | None
    predict: Tensor
