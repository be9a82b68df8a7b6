"""One token a row: truncation, bounds, and random numbers that belong to the row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.hybrid.rollout.base import RolloutError, SamplingParams
from verl_core.hybrid.rollout.sampling import row_uniforms, sample_tokens
from verl_reward_sdk import ConfigError


def draw(probs: list[float], uniforms: Any, **options: Any) -> tuple[list[int], list[float]]:
    """Tokens and probabilities of one distribution sampled at each of `uniforms`."""
    params = SamplingParams(max_new_tokens=1, **options)
    at = torch.as_tensor(uniforms, dtype=torch.float64)
    logits = torch.tensor(probs).log().expand(len(at), -1)
    tokens, log_probs = sample_tokens(logits, at, params)
    return tokens.tolist(), log_probs.exp().tolist()


EVENLY = np.arange(1000) / 1000


def shares(tokens: list[int], size: int) -> np.ndarray[Any, Any]:
    return np.bincount(tokens, minlength=size) / len(tokens)


def test_evenly_spaced_numbers_give_each_token_its_probability() -> None:
    tokens, probs = draw([0.1, 0.6, 0.0, 0.3], EVENLY)
    np.testing.assert_allclose(shares(tokens, 4), [0.1, 0.6, 0.0, 0.3], atol=2e-3)
    np.testing.assert_allclose(probs, np.array([0.1, 0.6, 0.0, 0.3])[tokens], atol=1e-6)


def test_temperature_sharpens() -> None:
    tokens, _ = draw([0.2, 0.8], EVENLY, temperature=0.5)
    np.testing.assert_allclose(shares(tokens, 2), [0.04 / 0.68, 0.64 / 0.68], atol=2e-3)


def test_top_k_keeps_the_likeliest_and_renormalises() -> None:
    tokens, probs = draw([0.1, 0.5, 0.1, 0.3], EVENLY, top_k=2)
    np.testing.assert_allclose(shares(tokens, 4), [0, 0.625, 0, 0.375], atol=2e-3)
    assert max(probs) == pytest.approx(0.625)


def test_top_p_keeps_the_fewest_tokens_that_hold_the_share() -> None:
    tokens, _ = draw([0.1, 0.5, 0.1, 0.3], EVENLY, top_p=0.7)
    np.testing.assert_allclose(shares(tokens, 4), [0, 0.625, 0, 0.375], atol=2e-3)


def test_top_p_never_leaves_a_row_without_a_token() -> None:
    tokens, _ = draw([0.25, 0.5, 0.25], EVENLY, top_p=1e-9)
    assert set(tokens) == {1}


def test_top_p_counts_shares_of_what_top_k_leaves() -> None:
    # Of 0.4 and 0.3 the first holds 0.571: enough for 0.5 of what is left, not of the whole.
    tokens, _ = draw([0.4, 0.3, 0.3], EVENLY, top_k=2, top_p=0.5)
    assert set(tokens) == {0}


def test_top_p_over_a_wide_flat_distribution_looks_at_the_whole_vocabulary() -> None:
    size = 2000
    tokens, _ = draw([1 / size] * size, EVENLY, top_p=0.9)
    assert len(set(tokens)) == 1000
    assert max(draw([1 / size] * size, [0.9999999], top_p=0.9)[1]) == pytest.approx(
        1 / 1800, rel=2e-3
    )


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}, {"temperature": 3.0}])
@pytest.mark.parametrize("edge", [0.0, 1.0 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn(options: Any, edge: float) -> None:
    tokens, _ = draw([0.0, 0.5, 0.5, 0.0], [edge], **options)
    assert tokens[0] in (1, 2)


def test_greedy_takes_the_likeliest_whatever_the_number() -> None:
    tokens, probs = draw([0.2, 0.5, 0.3], EVENLY, temperature=0.0)
    assert set(tokens) == {1}
    assert probs[0] == pytest.approx(0.5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_end_the_rollout(temperature: float, value: float) -> None:
    logits = torch.zeros((2, 4))
    logits[1, 2] = value
    params = SamplingParams(max_new_tokens=1, temperature=temperature)
    with pytest.raises(RolloutError, match="NaN or infinite"):
        sample_tokens(logits, torch.full((2,), 0.5, dtype=torch.float64), params)


@given(
    seed=st.integers(),
    rows=st.lists(st.integers(0, 10_000), min_size=1, max_size=6),
    length=st.integers(1, 9),
)
def test_a_rows_numbers_depend_on_the_seed_and_the_row_alone(
    seed: int, rows: list[int], length: int
) -> None:
    numbers = row_uniforms(seed, rows, length)
    assert numbers.shape == (len(rows), length)
    assert ((numbers >= 0) & (numbers < 1)).all()
    for place, row in enumerate(rows):
        alone = row_uniforms(seed, [row], length + 3)
        assert np.array_equal(numbers[place], alone[0, :length])


def test_rows_and_seeds_draw_different_numbers() -> None:
    numbers = row_uniforms(1, range(50), 4)
    assert len(np.unique(numbers)) == 200
    assert not np.isin(row_uniforms(2, range(50), 4), numbers).any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 1, "temperature": -1.0}, r"temperature is -1\.0"),
        ({"max_new_tokens": 1, "temperature": float("nan")}, "temperature is nan"),
        ({"max_new_tokens": 1, "top_p": 0.0}, r"top_p is 0\.0"),
        ({"max_new_tokens": 1, "top_p": 1.5}, r"top_p is 1\.5"),
        ({"max_new_tokens": 1, "top_k": -1}, "top_k is -1"),
    ],
)
def test_parameters_out_of_bounds_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SamplingParams(**options)
