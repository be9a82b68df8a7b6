"""Log-probabilities of responses: two layouts, one answer, and the answer is the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.trainer import log_probs as module
from verl_core.trainer.log_probs import (
    at_responses,
    check_plain_head,
    response_log_probs,
    supports_shared_prefix,
)
from verl_core.trainer.model_source import ModelSource
from verl_core.trainer.models import load_policy
from verl_core.trainer.packing import TokenBatch
from verl_core.trainer.vocabulary import CHUNK, token_log_probs
from verl_reward_sdk import ConfigError


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Any:
    return load_policy(ModelSource(tiny_model_dir, "folder", "tiny"), torch.float32, seed=0)


def make_batch(shape: list[tuple[int, list[int]]], seed: int = 0) -> TokenBatch:
    """Groups of ``(prompt length, response lengths)``, with random tokens."""
    random = np.random.default_rng(seed)
    prompts, responses, groups = [], [], []
    for group, (length, response_lengths) in enumerate(shape):
        prompt = random.integers(0, 258, length)
        for response_length in response_lengths:
            prompts.append(prompt)
            responses.append(random.integers(0, 258, response_length))
            groups.append(group)
    return TokenBatch(prompts, responses, np.array(groups, dtype=np.int64))


UNEVEN = [(9, [5, 1, 12]), (3, [7]), (14, [2, 0, 3, 30])]


def direct(model: Any, batch: TokenBatch, temperature: float = 1.0) -> tuple[Any, Any]:
    """The whole logits of each row by itself: slow, and plainly right."""
    chosen, entropies = [], []
    for prompt, response in zip(batch.prompt_ids, batch.response_ids, strict=True):
        ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : ids.shape[1] - 1]
        logits = torch.log_softmax(logits / temperature, dim=-1)
        chosen.append(logits.gather(-1, ids[0, len(prompt) :, None]).squeeze(-1))
        entropies.append(-(logits.exp() * logits).sum(-1))
    return torch.cat(chosen), torch.cat(entropies)


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), retain_graph=True))


def loss_of(log_probs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(-1, 2, len(log_probs))
    return (weights * log_probs).sum() + 0.3 * (weights.flip(0) * entropy).sum()


@pytest.mark.parametrize("shared_prefix", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_the_models_own(
    model: Any, shared_prefix: bool, temperature: float
) -> None:
    batch = make_batch(UNEVEN)
    ours = response_log_probs(
        model, batch, shared_prefix=shared_prefix, temperature=temperature, with_entropy=True
    )
    chosen, entropy = direct(model, batch, temperature)
    assert ours.entropy is not None
    assert ours.log_probs.dtype == torch.float32
    torch.testing.assert_close(ours.log_probs, chosen, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.entropy, entropy, atol=1e-4, rtol=0)
    for found, wanted in zip(
        gradients(model, loss_of(ours.log_probs, ours.entropy)),
        gradients(model, loss_of(chosen, entropy)),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, atol=2e-3, rtol=1e-3)


@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(
        st.tuples(st.integers(1, 12), st.lists(st.integers(0, 9), min_size=1, max_size=4)),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 1000),
)
def test_the_two_layouts_agree(model: Any, shape: Any, seed: int) -> None:
    batch = make_batch(shape, seed)
    with torch.no_grad():
        shared = response_log_probs(model, batch, with_entropy=True)
        padded = response_log_probs(model, batch, with_entropy=True, shared_prefix=False)
    assert shared.log_probs.shape == (batch.tokens,)
    assert shared.entropy is not None
    assert padded.entropy is not None
    torch.testing.assert_close(shared.log_probs, padded.log_probs, atol=1e-4, rtol=0)
    torch.testing.assert_close(shared.entropy, padded.entropy, atol=1e-4, rtol=0)


def test_rows_of_a_group_need_not_stand_together(model: Any) -> None:
    batch = make_batch(UNEVEN)
    order = np.array([4, 0, 3, 7, 1, 6, 2, 5])
    with torch.no_grad():
        straight = batch.to_padded(response_log_probs(model, batch).log_probs, 30)
        mixed = batch.take(order)
        crossed = mixed.to_padded(response_log_probs(model, mixed).log_probs, 30)
    torch.testing.assert_close(crossed, straight[torch.from_numpy(order)], atol=1e-4, rtol=0)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_both_kinds_of_attention_take_the_mask(model: Any, implementation: str) -> None:
    batch = make_batch(UNEVEN)
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        assert supports_shared_prefix(model)
        with torch.no_grad():
            found = response_log_probs(model, batch).log_probs
            wanted, _ = direct(model, batch)
    finally:
        model.set_attn_implementation(before)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_a_head_of_ones_own_gets_the_states_that_predict_each_token(model: Any) -> None:
    batch = make_batch(UNEVEN)
    torch.manual_seed(3)
    head = torch.nn.Linear(32, 1)
    with torch.no_grad():
        found = at_responses(model, batch, lambda hidden: head(hidden).squeeze(-1))
        wanted = []
        for prompt, response in zip(batch.prompt_ids, batch.response_ids, strict=True):
            ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
            hidden = model.model(input_ids=ids).last_hidden_state[0]
            wanted.append(head(hidden[len(prompt) - 1 : ids.shape[1] - 1]).squeeze(-1))
    torch.testing.assert_close(found, torch.cat(wanted), atol=1e-4, rtol=0)


def test_in_bf16_autocast_the_layouts_agree_to_the_noise_of_bf16(model: Any) -> None:
    batch = make_batch(UNEVEN)
    with torch.no_grad():
        exact = response_log_probs(model, batch, with_entropy=True)
        assert exact.entropy is not None
        for shared_prefix in (True, False):
            rounded = response_log_probs(
                model,
                batch,
                shared_prefix=shared_prefix,
                autocast=torch.bfloat16,
                with_entropy=True,
            )
            assert rounded.log_probs.dtype == torch.float32
            assert not torch.equal(rounded.log_probs, exact.log_probs)
            assert rounded.entropy is not None
            torch.testing.assert_close(rounded.log_probs, exact.log_probs, atol=0.5, rtol=0)
            torch.testing.assert_close(rounded.entropy, exact.entropy, atol=0.1, rtol=0)


def test_a_batch_of_empty_responses_has_no_log_probs(model: Any) -> None:
    batch = make_batch([(4, [0, 0])])
    result = response_log_probs(model, batch, with_entropy=True)
    assert result.log_probs.shape == (0,)
    assert result.entropy is not None
    assert result.entropy.shape == (0,)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_chunks_of_the_vocabulary_give_the_plain_formula_and_its_gradient(
    recompute: bool, with_entropy: bool
) -> None:
    torch.manual_seed(0)
    count = 2 * CHUNK + 5
    hidden = torch.randn(count, 8, dtype=torch.float64).float().requires_grad_()
    head = torch.nn.Linear(8, 50, bias=False)
    targets = torch.randint(0, 50, (count,))
    found, entropy = token_log_probs(
        hidden,
        head,
        targets,
        temperature=0.8,
        with_entropy=with_entropy,
        recompute=recompute,
    )
    plain = torch.log_softmax(head(hidden) / 0.8, dim=-1)
    wanted = plain.gather(-1, targets[:, None]).squeeze(-1)
    wanted_entropy = -(plain.exp() * plain).sum(-1)
    torch.testing.assert_close(found, wanted)
    weights = torch.randn(count)
    loss, wanted_loss = (weights * found).sum(), (weights * wanted).sum()
    assert (entropy is not None) == with_entropy
    if entropy is not None:
        torch.testing.assert_close(entropy, wanted_entropy)
        loss = loss + (weights.flip(0) * entropy).sum()
        wanted_loss = wanted_loss + (weights.flip(0) * wanted_entropy).sum()
    at = [hidden, head.weight]
    for ours, theirs in zip(
        torch.autograd.grad(loss, at), torch.autograd.grad(wanted_loss, at), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_either_result_may_be_used_without_the_other(model: Any) -> None:
    batch = make_batch(UNEVEN)
    chosen, entropy = direct(model, batch)
    for found, wanted in (
        (response_log_probs(model, batch, with_entropy=True).log_probs, chosen),
        (response_log_probs(model, batch, with_entropy=True).entropy, entropy),
    ):
        assert found is not None
        for ours, theirs in zip(
            gradients(model, found.sum()), gradients(model, wanted.sum()), strict=True
        ):
            torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-3)


def test_a_micro_batch_whose_logits_are_too_many_computes_them_twice(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(UNEVEN)
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    hook = model.lm_head.register_forward_hook(count)
    try:
        kept = response_log_probs(model, batch).log_probs.sum()
        wanted = gradients(model, kept)
        assert calls == 1
        monkeypatch.setattr(module, "LOGITS_BUDGET", 1000)
        found = gradients(model, response_log_probs(model, batch).log_probs.sum())
        assert calls == 3
    finally:
        hook.remove()
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_temperature_of_zero_has_no_log_probs(model: Any) -> None:
    with pytest.raises(ValueError, match="temperature is 0"):
        response_log_probs(model, make_batch([(2, [2])]), temperature=0)


def test_a_model_that_ignores_positions_does_not_share_prefixes() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(0)
    bloom = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)).eval()
    assert not supports_shared_prefix(bloom)


def test_a_model_with_a_sliding_window_does_not_share_prefixes() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    mistral = MistralForCausalLM(config).eval()
    assert not supports_shared_prefix(mistral)
    batch = TokenBatch(
        [np.arange(5), np.arange(5)], [np.arange(9), np.arange(30, 34)], np.array([0, 0])
    )
    with torch.no_grad():
        padded = response_log_probs(mistral, batch, shared_prefix=False).log_probs
        wanted, _ = direct(mistral, batch)
    torch.testing.assert_close(padded, wanted, atol=1e-4, rtol=0)


def test_a_model_that_caps_its_logits_is_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        final_logit_softcapping=0.05,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match="gemma2 model caps or scales its logits"):
        check_plain_head(Gemma2ForCausalLM(config).eval())
