from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from verl_reward_overlap.provider import OverlapProvider
from verl_reward_sdk import RewardBatch

Make = Callable[..., OverlapProvider[Any]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Builds a provider from config keywords, sets it up, and closes it at the end."""
    built: list[OverlapProvider[Any]] = []

    def build(provider: type[OverlapProvider[Any]], **config: Any) -> OverlapProvider[Any]:
        built.append(provider(provider.Config(**config)))
        built[-1].setup()
        return built[-1]

    yield build
    for provider in built:
        provider.close()


@pytest.fixture
def batch_of() -> Callable[[Sequence[str], Sequence[Any]], RewardBatch]:
    def build(responses: Sequence[str], references: Sequence[Any]) -> RewardBatch:
        return RewardBatch(
            sample_ids=[str(i) for i in range(len(responses))],
            prompts=["say it"] * len(responses),
            responses=responses,
            columns={"ground_truth": references},
        )

    return build
