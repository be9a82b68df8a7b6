from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_core.config.rewards import RewardsConfig
from verl_core.rewards import RewardEngine

RULES = r"""score: {base: 0.0, min: 0.0, max: 1.0}
rules:
  - {name: spaced, regex: '\s', points: 0.25, reason: has a space}
  - {name: polite, regex: 'please', points: 0.5, reason: asks politely}
"""


def sample(number: int, **more: Any) -> dict[str, Any]:
    """A line of ``samples.jsonl``, as the trainer writes it."""
    explain = {
        "fused": 0.75,
        "additive": True,
        "revision": 1,
        "generations": {"style": 1},
        "masked": None,
        "blocked": False,
        "reason": None,
        "gate": "none",
        "mounts": {
            "style": {
                "role": "reward",
                "raw": 0.75,
                "normalised": 0.75,
                "weight": 1.0,
                "contribution": 0.75,
                "status": "ok",
                "reason": "has a space",
                "severity": "none",
            }
        },
    }
    return {
        "step": number,
        "sample_id": f"{number}/0",
        "prompt": f"question {number}",
        "response": f"answer {number}",
        "fused": 0.75,
        "explain": explain,
        **more,
    }


def lines(records: list[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def append() -> Callable[[Path, list[Any]], None]:
    """Adds records to a JSON-lines file."""

    def add(path: Path, records: list[Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines(records))

    return add


@pytest.fixture
def make_sample() -> Callable[..., dict[str, Any]]:
    return sample


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RewardEngine]:
    """Real mounts: rules, chrF, and a gate of words."""
    (tmp_path / "rules.yaml").write_text(RULES, "utf-8")
    (tmp_path / "words.txt").write_text("rogue\n", "utf-8")
    mounts = [
        {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}},
        {"type": "overlap", "plugin": "chrf", "weight": 0.5},
        {
            "type": "guard",
            "plugin": "safety",
            "role": "gate",
            "penalty": -1.0,
            "init_kwargs": {"words": "words.txt"},
        },
    ]
    cfg = RewardsConfig.model_validate({"mounts": mounts, "base_dir": tmp_path})
    with RewardEngine.from_config(cfg) as made:
        yield made
