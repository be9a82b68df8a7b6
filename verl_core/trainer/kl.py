"""Estimators of the KL divergence between the policy and the reference model.

Source: Schulman, "Approximating KL divergence" (2020), with log r = log ref - log policy:
k1 = -log r (unbiased, high variance), k2 = (log r)^2 / 2 (low variance, biased),
k3 = (r - 1) - log r (unbiased, low variance, never negative; the one in GRPO's loss).
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Beyond e^20 a ratio says only that the two models have nothing to do with each other.
_LOG_BOUND = 20.0


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, estimator: str) -> Tensor:
    """The estimate a token, in nats; same shape as both inputs.

    Args:
        log_probs: log-probabilities of the sampled tokens under the policy.
        ref_log_probs: the same under the reference model.
        estimator: ``k1``, ``k2`` or ``k3``.
    """
    log_ratio = ref_log_probs - log_probs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    if estimator == "k3":
        bounded = log_ratio.clamp(-_LOG_BOUND, _LOG_BOUND)
        return torch.exp(bounded) - 1 - bounded
    raise ValueError(f"unknown KL estimator {estimator!r}: k1, k2 or k3")
