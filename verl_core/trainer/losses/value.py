"""The critic's loss: squared error, with the value held near the old one.

Source: the clipped value loss of OpenAI's baselines, as in verl and TRL:
max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None
) -> tuple[Tensor, Tensor]:
    """``(loss, clipped)`` a token, all of the inputs' shape.

    Args:
        values: the critic's values (with gradient).
        old_values: its values when the advantages were computed.
        returns: what the values should have been.
        clip: how far a value may move from the old one before the loss holds it; None: no bound.
    """
    if clip is None:
        return 0.5 * (values - returns).square(), torch.zeros_like(values)
    near = old_values + (values - old_values).clamp(-clip, clip)
    free, held = (values - returns).square(), (near - returns).square()
    return 0.5 * torch.maximum(free, held), (held > free).detach().to(free.dtype)
