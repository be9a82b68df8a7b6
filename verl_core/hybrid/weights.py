"""The rollout's copy of the policy: made once, refreshed in place before each rollout."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

ModelT = TypeVar("ModelT", bound=nn.Module)


def rollout_copy(model: ModelT, dtype: torch.dtype) -> ModelT:
    """A frozen copy of `model` with parameters of `dtype`, in eval mode.

    `model` itself where its parameters are of `dtype` already: it can generate as it is. Buffers
    keep their own type: rotary frequencies rounded to bf16 would shift every position.
    """
    if all(parameter.dtype == dtype for parameter in model.parameters()):
        return model
    # deepcopy asks the memo first, so each parameter is cast without a copy in between, and
    # tied ones stay tied.
    memo: dict[int, object] = {
        id(parameter): nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, memo).eval()


@torch.no_grad()
def sync_rollout_weights(train_model: nn.Module, rollout_model: nn.Module) -> None:
    """Copy the trained weights into the rollout's model, in place, cast to its type.

    Raises:
        ValueError: the two models' parameters do not match.
    """
    if rollout_model is train_model:
        return
    source, target = dict(train_model.named_parameters()), dict(rollout_model.named_parameters())
    if source.keys() != target.keys():
        odd = sorted(source.keys() ^ target.keys())
        raise ValueError(f"the rollout's model has other parameters than the policy: {odd[:3]}")
    for name, parameter in target.items():
        parameter.copy_(source[name])
