"""Loading a policy and its tokenizer, quietly and without the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from verl_core.trainer.log_probs import check_plain_head
from verl_core.trainer.model_source import ModelSource
from verl_core.trainer.quiet import quiet_transformers
from verl_reward_sdk import ConfigError, did_you_mean

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_of(name: str) -> torch.dtype:
    """``float32``, ``bfloat16`` or ``float16`` as torch knows it.

    Raises:
        ConfigError: another name.
    """
    if name not in _DTYPES:
        raise ConfigError(f"{name!r} is not a dtype", hint=did_you_mean(name, _DTYPES))
    return _DTYPES[name]


def load_policy(source: ModelSource, dtype: torch.dtype, seed: int) -> Any:
    """The causal language model in `source.path`, with sdpa attention where it has that.

    It is in eval mode and stays so while it is trained: with dropout on, the log-probabilities of
    one response would differ between sampling and update.

    Args:
        source: of `resolve_model`.
        dtype: of its weights.
        seed: of torch's generators, set before the model is built.

    Raises:
        ConfigError: the folder holds no causal language model, weights are missing from it, or
            its logits are not a plain projection of its hidden states.
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    with quiet_transformers():
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                source.path,
                dtype=dtype,
                local_files_only=True,
                output_loading_info=True,
                trust_remote_code=False,
            )
        except (ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"the model in {source.path} cannot be loaded: {_first_line(error)}",
                hint="a causal language model that transformers knows is needed",
            ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ConfigError(
            f"the weights in {source.path} lack {len(missing)} of the model's parameters, "
            f"such as {missing[0]}",
            hint="random ones in their place would spoil it: take a complete causal language model",
        )
    model.eval()
    check_plain_head(model)
    return model


def load_tokenizer(source: ModelSource | Path) -> Any:
    """The tokenizer in a model's folder: padding on the left, and always with a pad token.

    A tokenizer without a pad token pads with its end token: padding is masked everywhere, so any
    token will do.

    Raises:
        ConfigError: the folder holds no tokenizer, or one with neither pad nor end token.
    """
    from transformers import AutoTokenizer

    path = source.path if isinstance(source, ModelSource) else source
    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                path, local_files_only=True, padding_side="left", trust_remote_code=False
            )
        except (ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"the tokenizer in {path} cannot be loaded: {_first_line(error)}",
                hint="save one there with tokenizer.save_pretrained",
            ) from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                f"the tokenizer in {path} has neither a pad token nor an end token",
                hint="set eos_token in its tokenizer_config.json",
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a response: the generation config's, and the tokenizer's own."""
    named = getattr(model.generation_config, "eos_token_id", None)
    found = list(named) if isinstance(named, (list, tuple)) else [named]
    found.append(tokenizer.eos_token_id)
    return tuple(sorted({int(token) for token in found if token is not None}))


def context_length(model: Any) -> int | None:
    """How many tokens the model can read, prompt and response together; None where unbounded."""
    return _positions(model.config)


def configured_context(source: ModelSource) -> int | None:
    """`context_length` of the model in `source.path`, from its config.json: no weights are read.

    Raises:
        ConfigError: transformers knows no such model.
    """
    from transformers import AutoConfig

    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(
                source.path, local_files_only=True, trust_remote_code=False
            )
        except (ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"the config.json in {source.path} cannot be used: {_first_line(error)}",
                hint="a causal language model that transformers knows is needed",
            ) from error
    return _positions(config)


def _positions(config: Any) -> int | None:
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(length) if length else None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
