"""One token a row, by inverting the cumulative distribution.

A row's random numbers come from a counter-based generator keyed by (seed, row): they do not
depend on the batch that the row is in, on other rows that have ended, or on what was sampled
before. Inverting the distribution costs a tenth of `torch.multinomial` at a vocabulary of 49,152.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verl_core.config.limits import MIN_TEMPERATURE
from verl_core.hybrid.rollout.base import RolloutError, SamplingParams
from verl_reward_sdk import ConfigError

_KEY_BITS = (1 << 64) - 1
#: So many of the likeliest tokens are sorted first for top_p; the whole vocabulary only where
#: these do not hold the share that is asked for.
_NUCLEUS = 512


def row_uniforms(seed: int, rows: Sequence[int], length: int) -> NDArray[np.float64]:
    """(len(rows), length) numbers in [0, 1); row i depends on (seed, rows[i]) only."""
    numbers = np.empty((len(rows), length))
    for place, row in enumerate(rows):
        key = np.array([seed & _KEY_BITS, row & _KEY_BITS], dtype=np.uint64)
        numbers[place] = np.random.Generator(np.random.Philox(key=key)).random(length)
    return numbers


def sample_tokens(
    logits: Tensor, uniforms: Tensor, params: SamplingParams
) -> tuple[Tensor, Tensor]:
    """``(tokens, log_probs)``, int64 (R,) and float32 (R,).

    Args:
        logits: (R, V) of any float type.
        uniforms: (R,) float64 in [0, 1), one a row.
        params: temperature, top_k and top_p; as in Hugging Face's `generate`, top_k is applied
            before top_p and top_p counts shares of what top_k leaves.
    """
    logits = logits.float()
    if params.temperature == 0.0:
        tokens = logits.argmax(dim=-1)
        chosen = logits.gather(-1, tokens[:, None]).squeeze(-1)
        log_probs = chosen - torch.logsumexp(logits, dim=-1)
        _check_finite(log_probs)
        return tokens, log_probs
    if params.temperature != 1.0:
        logits = logits / params.temperature
    candidates: Tensor | None = None
    if params.top_k or params.top_p < 1.0:
        logits, candidates = _truncate(logits, params)
    top = logits.amax(dim=-1, keepdim=True)
    cumulative = torch.exp(logits - top).cumsum_(dim=-1)
    total = cumulative[:, -1:]
    _check_finite(total)
    # Strictly below the total, so that the token found is one that adds to it.
    target = (uniforms[:, None] * total.double()).float()
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    places = torch.searchsorted(cumulative, target, right=True)
    log_probs = logits.gather(-1, places) - top - torch.log(total)
    tokens = places if candidates is None else candidates.gather(-1, places)
    return tokens.squeeze(-1), log_probs.squeeze(-1)


def check_temperature(temperature: float) -> None:
    """Raise `ConfigError` where it is neither 0 (greedy) nor at least `MIN_TEMPERATURE`: logits
    divided by it would be infinite, whatever the model's weights are."""
    if 0.0 < temperature < MIN_TEMPERATURE:
        raise ConfigError(
            f"temperature is {temperature:g}; it must be at least {MIN_TEMPERATURE:g}, or 0 for the"
            " likeliest token each time"
        )


def _truncate(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """The likeliest tokens' logits, descending, -inf beyond top_p, and their ids; both (R, C)."""
    vocabulary = logits.shape[-1]
    if params.top_k:
        values, ids = torch.topk(logits, min(params.top_k, vocabulary))
        whole = torch.logsumexp(values, dim=-1, keepdim=True)
    else:
        values, ids = torch.topk(logits, min(_NUCLEUS, vocabulary))
        whole = torch.logsumexp(logits, dim=-1, keepdim=True)
        if bool((torch.exp(values - whole).sum(dim=-1) < params.top_p).any()):
            values, ids = torch.topk(logits, vocabulary)
    if params.top_p >= 1.0:
        return values, ids
    shares = torch.exp(values - whole)
    before = shares.cumsum(dim=-1) - shares
    beyond = before >= params.top_p
    beyond[:, 0] = False
    return values.masked_fill(beyond, -torch.inf), ids


def _check_finite(values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise RolloutError(
            "the model's logits are NaN or infinite, so nothing can be sampled from them; "
            "the weights have diverged: resume from an earlier checkpoint with a lower optim.lr"
        )
