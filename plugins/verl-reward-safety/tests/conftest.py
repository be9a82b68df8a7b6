from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_reward_safety import Safety, SafetyConfig
from verl_reward_sdk import RewardBatch


@pytest.fixture
def gate(tmp_path: Path) -> Callable[..., Safety]:
    """Builds a gate from lists of terms, through files."""

    def build(words: Sequence[str], allow: Sequence[str] | None = None, **config: Any) -> Safety:
        path = tmp_path / "words.txt"
        path.write_text("\n".join(words) + "\n", encoding="utf-8")
        if allow is not None:
            config["allow"] = tmp_path / "allow.txt"
            config["allow"].write_text("\n".join(allow) + "\n", encoding="utf-8")
        built = Safety(SafetyConfig(words=path, **config))
        built.setup()
        return built

    return build


@pytest.fixture
def batch_of() -> Callable[[Sequence[str]], RewardBatch]:
    def build(responses: Sequence[str]) -> RewardBatch:
        return RewardBatch(
            sample_ids=[str(i) for i in range(len(responses))],
            prompts=["sell it"] * len(responses),
            responses=responses,
        )

    return build
