"""Log-probabilities of chosen tokens over a vocabulary, without a (B, T, V) tensor.

The head runs on the response positions alone, some rows of hidden states at a time. What the
backward pass needs of a chunk is its logits, in the head's own type; the softmax is computed
again from them. With `recompute` the logits are not kept either: the head runs once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

#: Hidden states a chunk: its float32 logits (128 x 49,152: 25 MB) stay near the cache.
CHUNK = 128


def token_log_probs(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    recompute: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``(log_probs, entropy)``, float32 (N,); entropy in nats, None where it was not asked for.

    Args:
        hidden: (N, H) hidden states.
        head: (n, H) -> (n, V) logits.
        targets: (N,) int64, the token whose log-probability is wanted.
        temperature: logits are divided by it, as they were for sampling. Must be > 0.
        with_entropy: also the entropy of each distribution, with gradient.
        recompute: keep no logits for the backward pass; a quarter more work in the head.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; log-probabilities need one above 0")

    def chunk_of(part: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        values: tuple[Tensor, Tensor] = _TokenLogProbs.apply(  # type: ignore[no-untyped-call]
            head(part), wanted, temperature, with_entropy
        )
        return values

    log_probs, entropies = [], []
    for start in range(0, len(targets), CHUNK):
        part, wanted = hidden[start : start + CHUNK], targets[start : start + CHUNK]
        if recompute and torch.is_grad_enabled():
            chosen, entropy = checkpoint(chunk_of, part, wanted, use_reentrant=False)
        else:
            chosen, entropy = chunk_of(part, wanted)
        log_probs.append(chosen)
        entropies.append(entropy)
    if not log_probs:
        nothing = hidden.new_zeros(0, dtype=torch.float32)
        return nothing, nothing if with_entropy else None
    return torch.cat(log_probs), torch.cat(entropies) if with_entropy else None


class _TokenLogProbs(torch.autograd.Function):
    """(n, V) logits and (n,) tokens to log-probabilities and entropies, both (n,) float32.

    With z the logits over the temperature, p = softmax(z) and H the entropy: d log p_y / dz =
    onehot(y) - p, and dH / dz = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        scaled = logits.float()
        if temperature != 1.0:
            scaled = scaled / temperature
        top = scaled.amax(dim=-1, keepdim=True)
        weights = (scaled - top).exp_()
        total = weights.sum(dim=-1)
        norm = torch.log(total) + top.squeeze(-1)
        log_probs = scaled.gather(-1, targets[:, None]).squeeze(-1) - norm
        if with_entropy:
            entropy = norm - weights.mul_(scaled).sum(dim=-1) / total
        else:
            entropy = torch.zeros_like(norm)
        ctx.save_for_backward(logits, targets, norm, entropy)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)  # an entropy that is only logged costs nothing backward
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None, None, None]:
        grad_log_probs, grad_entropy = grads
        logits, targets, norm, entropy = ctx.saved_tensors
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(norm)
        log_p = logits.float() / ctx.temperature - norm[:, None]
        if grad_entropy is not None:
            grad = torch.exp(log_p)
            factor = log_p.add_(entropy[:, None]).mul_(-grad_entropy[:, None])
            grad.mul_(factor.sub_(grad_log_probs[:, None]))
        else:
            grad = log_p.exp_().mul_(-grad_log_probs[:, None])
        grad.scatter_add_(-1, targets[:, None], grad_log_probs[:, None])
        if ctx.temperature != 1.0:
            grad.div_(ctx.temperature)
        return grad.to(logits.dtype), None, None, None
