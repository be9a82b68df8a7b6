"""What a fusion policy cannot serve: bounds out of reach, factors without bounds."""

from __future__ import annotations

import pytest

from tests.config.conftest import Load
from verl_core.rewards import RewardEngine
from verl_reward_sdk import ConfigError

MOUNTS = """\
reward:
  - {type: odd, plugin: rouge, init_kwargs: {reference: answer}%s}
  - {type: facts, plugin: rouge, init_kwargs: {reference: fact}}
"""


def refusal(load: Load, keys: str, fusion: str) -> tuple[ConfigError, tuple[int, int] | None]:
    """What is said, and the line and column of its YAML path."""
    config = load(MOUNTS % keys + f"fusion: {fusion}\n")
    with pytest.raises(ConfigError) as caught:
        RewardEngine.from_config(config.rewards()).close()
    assert caught.value.path is not None
    return caught.value, config.locate(caught.value.path)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("5", "odd can never reach its bound 5: the raw scores of rouge lie in [0, 1]"),
        ("1.01", "odd can never reach its bound 1.01"),
        ("0", "odd is never under its bound 0, so that it bounds nothing"),
        ("-5", "odd is never under its bound -5, so that it bounds nothing: the raw scores"),
    ],
)
def test_a_bound_outside_the_raw_scores_is_refused_at_its_place(
    load: Load, bound: str, words: str
) -> None:
    error, place = refusal(load, "", f"{{policy: constrained, bounds: {{odd: {bound}}}}}")
    assert words in error.message
    assert error.path == "fusion.bounds.odd"
    assert place == (6, 45)


@pytest.mark.parametrize("bound", [0.001, 0.5, 1.0])
def test_a_bound_within_the_raw_scores_is_taken_whatever_scale_says(
    load: Load, bound: float
) -> None:
    fusion = f"{{policy: constrained, bounds: {{odd: {bound}}}}}"
    config = load(MOUNTS % ", scale: 10, clip: [0, 2]" + f"fusion: {fusion}\n")
    with RewardEngine.from_config(config.rewards()) as engine:
        assert engine.policy.multipliers == {"odd": 0.0}  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ["group", "batch", "running"])
def test_a_product_names_normalize_as_the_cause(load: Load, way: str) -> None:
    error, place = refusal(load, f", normalize: {way}", "{policy: product}")
    assert f"normalize: {way} lets those of odd lie in [-inf, inf]" in error.message
    assert error.path == "reward.odd.normalize"
    assert place is not None
    assert place[0] == 4
