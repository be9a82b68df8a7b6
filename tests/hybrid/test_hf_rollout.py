"""Responses sampled with a Hugging Face model: right, reproducible, and whatever the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.hybrid.rollout.base import Ended, Rollout
from verl_core.hybrid.rollout.hf import HFRollout
from verl_core.trainer.model_source import ModelSource
from verl_core.trainer.models import load_policy, load_tokenizer, stop_ids
from verl_reward_sdk import ConfigError

#: Every seventh token or so ends a response, so that lengths differ.
MANY_STOPS = tuple(range(0, 258, 7))
PROMPTS = [
    np.array([72, 101, 108, 108, 111], dtype=np.int64),
    np.array([65], dtype=np.int64),
    np.array([100, 32, 97, 32, 98, 32, 99, 33, 34, 35, 36], dtype=np.int64),
]


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Any:
    return load_policy(ModelSource(tiny_model_dir, "folder", "tiny"), torch.float32, seed=0)


def sample(model: Any, **options: Any) -> Rollout:
    engine = {
        key: options.pop(key) for key in ("stop_ids", "batch_rows", "compact_at") if key in options
    }
    engine.setdefault("stop_ids", MANY_STOPS)
    asked: dict[str, Any] = {"seed": 7, "max_new_tokens": 24, **options}
    n = asked.pop("n", 6)
    return HFRollout(model, pad_id=0, **engine).generate(PROMPTS, n, **asked)


@pytest.mark.parametrize("temperature", [1e-300, 9e-4])
def test_a_temperature_too_near_to_0_is_refused_and_not_called_a_diverged_model(
    model: Any, temperature: float
) -> None:
    with pytest.raises(ConfigError, match=r"temperature is .*; it must be at least 0\.001, or 0"):
        sample(model, temperature=temperature)


def test_at_the_lowest_temperature_everything_is_finite(model: Any) -> None:
    rollout = sample(model, temperature=1e-3, with_log_probs=True)
    assert rollout.log_probs is not None
    assert all(np.isfinite(row).all() for row in rollout.log_probs)


def as_lists(rollout: Rollout) -> list[list[int]]:
    return [row.tolist() for row in rollout.response_ids]


def test_rows_stand_in_prompt_order_and_end_at_the_first_end_token(model: Any) -> None:
    rollout = sample(model)
    assert len(rollout) == len(rollout.finish_reason) == 18
    assert rollout.tokens == sum(len(row) for row in rollout.response_ids)
    assert len({len(row) for row in rollout.response_ids}) > 3
    for row, reason in zip(rollout.response_ids, rollout.finish_reason, strict=True):
        ends = np.isin(row, MANY_STOPS)
        assert row.dtype == np.int64
        assert 1 <= len(row) <= 24
        assert not ends[:-1].any()
        assert ends[-1] == (reason == "stop")
        assert reason == "stop" or len(row) == 24


@pytest.mark.parametrize("batch_rows", [1, 4, 7, 64])
def test_the_size_of_the_batch_changes_no_row(model: Any, batch_rows: int) -> None:
    assert as_lists(sample(model, batch_rows=batch_rows)) == as_lists(sample(model))


@pytest.mark.parametrize("compact_at", [0.01, 0.5, 2.0])
def test_when_ended_rows_leave_changes_no_row(model: Any, compact_at: float) -> None:
    whole = sample(model, compact_at=compact_at, with_log_probs=True)
    usual = sample(model, with_log_probs=True)
    assert as_lists(whole) == as_lists(usual)
    assert whole.log_probs is not None
    assert usual.log_probs is not None
    for ours, theirs in zip(whole.log_probs, usual.log_probs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"batch_rows": 5}, {"compact_at": 2.0}])
def test_rows_are_handed_on_as_they_end_each_once_and_as_the_rollout_holds_them(
    model: Any, options: dict[str, Any]
) -> None:
    told: list[Ended] = []
    rollout = sample(model, on_ended=told.append, **options)
    rows = [row for ended in told for row in ended.rows]
    assert sorted(rows) == list(range(18))
    assert len(told) > 3  # not all at the end
    for ended in told:
        assert ended.rows == sorted(ended.rows)
        for row, ids, reason in zip(
            ended.rows, ended.response_ids, ended.finish_reason, strict=True
        ):
            assert ids.tolist() == rollout.response_ids[row].tolist()
            assert reason == rollout.finish_reason[row]
    assert as_lists(rollout) == as_lists(sample(model, **options))


def test_of_one_batch_shorter_responses_are_handed_on_before_longer_ones(model: Any) -> None:
    told: list[Ended] = []
    sample(model, on_ended=told.append)
    lengths = [{len(ids) for ids in ended.response_ids} for ended in told]
    assert all(len(one) == 1 for one in lengths)
    assert [one.pop() for one in lengths] == sorted({len(r) for e in told for r in e.response_ids})


def test_what_the_taker_of_rows_raises_ends_the_rollout(model: Any) -> None:
    def refuse(ended: Ended) -> None:
        raise ConfigError(f"row {ended.rows[0]}")

    with pytest.raises(ConfigError, match="row"):
        sample(model, on_ended=refuse)


def test_the_same_seed_gives_the_same_bits_and_another_seed_other_responses(model: Any) -> None:
    first, again = sample(model, with_log_probs=True), sample(model, with_log_probs=True)
    assert as_lists(first) == as_lists(again)
    assert first.log_probs is not None
    assert again.log_probs is not None
    assert all(np.array_equal(a, b) for a, b in zip(first.log_probs, again.log_probs, strict=True))
    assert as_lists(first) != as_lists(sample(model, seed=8))


def test_responses_to_one_prompt_differ(model: Any) -> None:
    rows = as_lists(sample(model, n=8, max_new_tokens=8))
    assert len({tuple(row) for row in rows[:8]}) > 4


@pytest.mark.parametrize("stops", [(), (30, 50, 90, 120, 200)])
def test_greedy_is_what_generate_gives(model: Any, stops: tuple[int, ...]) -> None:
    ours = sample(model, n=1, temperature=0.0, stop_ids=stops)
    for prompt, row in zip(PROMPTS, ours.response_ids, strict=True):
        theirs = model.generate(
            input_ids=torch.from_numpy(prompt)[None],
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=list(stops) or [10_000],
            pad_token_id=0,
        )
        assert row.tolist() == theirs[0, len(prompt) :].tolist()


def test_log_probs_are_those_of_the_model(model: Any) -> None:
    rollout = sample(model, temperature=0.7, with_log_probs=True)
    assert rollout.log_probs is not None
    for row, (response, log_probs) in enumerate(
        zip(rollout.response_ids, rollout.log_probs, strict=True)
    ):
        prompt = PROMPTS[row // 6]
        ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / 0.7
        expected = torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])
        np.testing.assert_allclose(log_probs, expected.squeeze(-1).numpy(), atol=1e-4)


def test_samples_follow_the_models_distribution(model: Any) -> None:
    n = 3000
    engine = HFRollout(model, stop_ids=(), pad_id=0, batch_rows=n)
    rollout = engine.generate(PROMPTS[:1], n, seed=3, max_new_tokens=1)
    counts = np.bincount([int(row[0]) for row in rollout.response_ids], minlength=258)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(PROMPTS[0])[None]).logits[0, -1]
    expected = torch.softmax(logits, -1).double().numpy() * n
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    chi_square = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(wanted) - 1
    assert freedom > 10
    # Mean `freedom`, variance twice that: five standard deviations above it never happens.
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 5), batch_rows=st.integers(1, 20), seed=st.integers(-(2**70), 2**70))
def test_any_cut_of_any_rollout_gives_the_same_rows(
    model: Any, n: int, batch_rows: int, seed: int
) -> None:
    options: dict[str, Any] = {"n": n, "seed": seed, "max_new_tokens": 5}
    assert as_lists(sample(model, batch_rows=batch_rows, **options)) == as_lists(
        sample(model, **options)
    )


def test_no_prompts_give_no_rows(model: Any) -> None:
    rollout = HFRollout(model, stop_ids=(), pad_id=0).generate([], 4, seed=0, max_new_tokens=3)
    assert (len(rollout), rollout.tokens) == (0, 0)


def test_a_prompt_without_room_for_the_response_is_refused(model: Any) -> None:
    long = np.zeros(500, dtype=np.int64)
    with pytest.raises(ConfigError, match=r"prompt 1 has 500 tokens.*context of 512"):
        HFRollout(model, stop_ids=(), pad_id=0).generate(
            [PROMPTS[0], long], 1, seed=0, max_new_tokens=13
        )


def test_an_empty_prompt_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match="prompt 0 has no tokens"):
        HFRollout(model, stop_ids=(), pad_id=0).generate(
            [np.zeros(0, dtype=np.int64)], 1, seed=0, max_new_tokens=3
        )


def test_a_model_with_sliding_windows_samples_what_generate_gives() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(1)
    config = MistralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=6,
        initializer_range=0.3,
    )
    mistral = MistralForCausalLM(config).eval()
    prompts = [np.arange(9, dtype=np.int64), np.array([5, 6], dtype=np.int64)]
    ours = HFRollout(mistral, stop_ids=(), pad_id=0).generate(
        prompts, 1, seed=0, max_new_tokens=12, temperature=0.0
    )
    for prompt, row in zip(prompts, ours.response_ids, strict=True):
        theirs = mistral.generate(
            input_ids=torch.from_numpy(prompt)[None],
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=[10_000],
            pad_token_id=0,
        )
        assert row.tolist() == theirs[0, len(prompt) :].tolist()


def test_stop_ids_are_the_generation_configs_and_the_tokenizers(
    model: Any, tiny_model_dir: Path
) -> None:
    tokenizer = load_tokenizer(tiny_model_dir)
    before = model.generation_config.eos_token_id
    try:
        model.generation_config.eos_token_id = [3, 9]
        assert stop_ids(model, tokenizer) == (3, 9, tokenizer.eos_token_id)
        model.generation_config.eos_token_id = None
        assert stop_ids(model, tokenizer) == (tokenizer.eos_token_id,)
    finally:
        model.generation_config.eos_token_id = before
