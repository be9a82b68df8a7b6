"""Log-probabilities, entropies and values of sampled responses under a model.

The model's body runs over the responses in one of two layouts (see `packing`); its head, or a
critic's, runs on the positions that predict a response token, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verl_core.hybrid.body import model_body
from verl_core.trainer.packing import (
    ModelInputs,
    TokenBatch,
    padded_inputs,
    shared_prefix_inputs,
)
from verl_core.trainer.vocabulary import token_log_probs
from verl_reward_sdk import ConfigError

ResultT = TypeVar("ResultT")

#: Bytes of logits that one micro-batch may keep for its backward pass; beyond, they are computed
#: again.
LOGITS_BUDGET = 512 << 20


@dataclass(frozen=True)
class TokenLogProbs:
    """Packed results of a `TokenBatch` (see there): N response tokens, row after row.

    Args:
        log_probs: (N,) float32, in nats, with gradient where gradients are enabled.
        entropy: (N,) float32, in nats, of the distribution each token was drawn from, or None.
    """

    log_probs: Tensor
    entropy: Tensor | None


def response_log_probs(
    model: Any,
    batch: TokenBatch,
    *,
    shared_prefix: bool = True,
    temperature: float = 1.0,
    with_entropy: bool = False,
    autocast: torch.dtype | None = None,
) -> TokenLogProbs:
    """Log-probabilities of `batch`'s responses under `model`.

    Args:
        model: a causal language model of transformers whose logits are a plain projection of its
            last hidden states (`check_plain_head` says so once).
        batch: prompts and responses.
        shared_prefix: one sequence a group, its prompt once; else one sequence a response. They
            agree to 1e-4 in fp32, and in bf16 to the noise of bf16. `supports_shared_prefix` says
            whether a model can.
        temperature: the one that the responses were sampled with.
        with_entropy: also entropies.
        autocast: compute in this type (torch.bfloat16); None for the weights' own.
    """

    def log_probs_of(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        size = torch.empty((), dtype=autocast or hidden.dtype).element_size()
        logits_bytes = batch.tokens * int(model.config.get_text_config().vocab_size) * size
        return token_log_probs(
            hidden,
            model.get_output_embeddings(),
            batch.targets.to(hidden.device),
            temperature=temperature,
            with_entropy=with_entropy,
            recompute=logits_bytes > LOGITS_BUDGET,
        )

    return TokenLogProbs(
        *at_responses(model, batch, log_probs_of, shared_prefix=shared_prefix, autocast=autocast)
    )


def at_responses(
    model: Any,
    batch: TokenBatch,
    head: Callable[[Tensor], ResultT],
    *,
    shared_prefix: bool = True,
    autocast: torch.dtype | None = None,
) -> ResultT:
    """``head(hidden)``, where hidden (N, H) are the last hidden states that predict each response
    token: what the policy's own head sees, and what a critic's head values.

    Args:
        model: a causal language model; its body runs, its head does not.
        head: any function of hidden (N, H), run under the same autocast.
        batch, shared_prefix, autocast: as in `response_log_probs`.
    """
    device = next(model.parameters()).device
    inputs = shared_prefix_inputs(batch) if shared_prefix else padded_inputs(batch)
    with _autocast(device, autocast):
        return head(_response_hidden(model, inputs, device))


def supports_shared_prefix(model: Any) -> bool:
    """Whether `model` has the same hidden states in both layouts, tried on a few tokens.

    Models that take no positions from outside (linear attention, ALiBi), and kernels that take no
    mask of ours, do not.
    """
    if getattr(model.config.get_text_config(), "sliding_window", None) is not None:
        return False  # a window counts places in the sequence, which are not a response's own
    batch = _probe_batch(model)
    try:
        with torch.no_grad():
            shared = at_responses(model, batch, Tensor.float, shared_prefix=True)
            padded = at_responses(model, batch, Tensor.float, shared_prefix=False)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False  # a kernel that refuses the mask, a body that refuses the positions
    return bool((shared - padded).abs().max() <= _tolerance(model) * padded.abs().max())


def check_plain_head(model: Any) -> None:
    """Refuse a model whose logits are not its output embeddings' product with its hidden states.

    Raises:
        ConfigError: the model caps or scales its logits, or has no output embeddings.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ConfigError(
            f"a {model.config.model_type} model has no output embeddings, so it cannot be trained "
            "here",
            hint="a causal language model is needed, such as a Llama, Qwen or SmolLM",
        )
    batch = _probe_batch(model)
    ids = torch.from_numpy(batch.prompt_ids[0])[None].to(next(model.parameters()).device)
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits.float()
        plain = head(model_body(model)(input_ids=ids, use_cache=False).last_hidden_state).float()
    if bool((whole - plain).abs().max() > _tolerance(model) * plain.abs().max()):
        raise ConfigError(
            f"a {model.config.model_type} model caps or scales its logits, which training does not "
            "do, so its log-probabilities would be wrong",
            hint="choose a model without logit soft-capping or logit scaling",
        )


def _response_hidden(model: Any, inputs: ModelInputs, device: torch.device) -> Tensor:
    """(N, H) last hidden states at the places that predict a response token."""
    body = model_body(model)
    output = body(
        input_ids=inputs.input_ids.to(device),
        position_ids=inputs.position_ids.to(device),
        attention_mask=_mask_for(model, inputs.mask, device),
        use_cache=False,
    )
    hidden: Tensor = output.last_hidden_state
    return hidden.flatten(0, 1).index_select(0, inputs.predict.to(device))


def _mask_for(model: Any, mask: Tensor | None, device: torch.device) -> Tensor | None:
    """`mask` as the model's attention wants it: bool for sdpa, else a float to add to scores."""
    if mask is None:
        return None
    mask = mask.to(device)
    if getattr(model.config, "_attn_implementation", None) == "sdpa":
        return mask
    dtype = _weights_type(model)
    return torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill_(
        ~mask, torch.finfo(dtype).min
    )


def _autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    if dtype is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def _weights_type(model: Any) -> torch.dtype:
    dtype: torch.dtype = next(model.parameters()).dtype
    return dtype


def _tolerance(model: Any) -> float:
    """The largest relative difference that rounding alone explains."""
    return 1e-4 if _weights_type(model) == torch.float32 else 0.05


def _probe_batch(model: Any) -> TokenBatch:
    """Two groups of unlike lengths, of any tokens."""
    vocabulary = int(model.config.get_text_config().vocab_size)

    def ids(start: int, count: int) -> NDArray[np.int64]:
        return (start + 7 * np.arange(count, dtype=np.int64)) % vocabulary

    first, second = ids(3, 5), ids(11, 3)
    return TokenBatch(
        prompt_ids=[first, first, second, second],
        response_ids=[ids(2, 4), ids(23, 2), ids(5, 1), ids(31, 3)],
        groups=np.array([0, 0, 1, 1]),
    )
