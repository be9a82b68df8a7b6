from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_reward_rules import Rules, RulesConfig
from verl_reward_sdk import RewardBatch


@pytest.fixture
def rules(tmp_path: Path) -> Callable[[str], Rules]:
    """Builds the provider from the text of a rule file, through that file."""

    def build(text: str) -> Rules:
        path = tmp_path / "tone.yaml"
        path.write_text(text, encoding="utf-8")
        built = Rules(RulesConfig(rules=path))
        built.setup()
        return built

    return build


@pytest.fixture
def rule(rules: Callable[[str], Rules]) -> Callable[[str], Rules]:
    """Builds the provider from the settings of one rule that is worth a point."""
    return lambda settings: rules(f"rules: [{{name: it, points: 1, {settings}}}]")


@pytest.fixture
def batch_of() -> Callable[..., RewardBatch]:
    def build(responses: Sequence[str], **more: Any) -> RewardBatch:
        more.setdefault("prompts", ["ask"] * len(responses))
        return RewardBatch(
            sample_ids=[str(i) for i in range(len(responses))], responses=responses, **more
        )

    return build
