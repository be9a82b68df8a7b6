"""The clipped surrogate of PPO, as GRPO uses it too.

Source: Schulman et al., "Proximal policy optimization", arXiv:1707.06347, equation 7.

Deviations from the paper:
1. The upper bound may be wider than the lower one (``clip_ratio_high``; "clip-higher" of DAPO,
   arXiv:2503.14476, section 3.1).
2. The log-ratio is bounded to +-20 before the exponential, so that one broken token cannot make
   the loss infinite.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """``(loss, clipped)`` a token, all of the inputs' shape.

    Args:
        log_probs: log-probabilities under the policy that is trained (with gradient).
        old_log_probs: the same under the policy that sampled, without gradient.
        advantages: advantage of each token.
        low: the ratio is held above ``1 - low`` where that lowers the objective.
        high: and below ``1 + high``.

    Returns:
        loss: the negated objective a token.
        clipped: 1.0 where the clip was active, without gradient.
    """
    ratio = torch.exp((log_probs - old_log_probs).clamp(-20.0, 20.0))
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return torch.maximum(free, held), (held > free).detach().to(free.dtype)
