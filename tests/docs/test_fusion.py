"""The worked example of docs/fusion.md, every number of it computed again."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import FusionConfig, RewardsConfig
from verl_core.rewards import RewardEngine
from verl_core.rewards.fusion import POLICIES
from verl_core.trainer.advantage.gdpo import gdpo_advantages
from verl_reward_sdk import RewardBatch, RewardProvider
from verl_reward_sdk.provider import ProviderConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fusion.md"
WEIGHTS = {"correct": 2.0, "tone": 1.0, "short": 1.0}
OPTIONS = {"constrained": {"bounds": {"short": 0.8}, "rate": 0.5}}
SWITCHED = ("min", "lexicographic")


def tables():
    """The page's tables: (header, row, …), each row a list of cells, by the header's first cell."""
    found = {}
    for block in re.findall(r"(?:^\|.*\n)+", PAGE.read_text("utf-8"), re.MULTILINE):
        lines = [line.strip("|").split("|") for line in block.splitlines()]
        rows = [[cell.strip() for cell in line] for line in lines]
        found[rows[0][0], rows[0][1]] = [rows[0], *rows[2:]]
    return found


TABLES = tables()
SCORES = TABLES["response", "correct"]
COLUMNS = {
    name: [None if row[place] == "–" else float(row[place]) for row in SCORES[1:]]
    for place, name in enumerate(SCORES[0])
    if place
}


class Said(RewardProvider[ProviderConfig]):
    """Gives the scores of one column of the page."""

    execution = "inline"
    score_range = (0.0, 1.0)

    def __init__(self, scores):
        super().__init__(ProviderConfig())
        self.scores = scores

    def score(self, batch):
        return self.scores


def build(policy, **keys):
    mounts = [
        MountConfig(
            type=name,
            node_class="a.B",
            weight=1.0 if policy in SWITCHED else WEIGHTS[name],
            **keys.get(name, {}),
        )
        for name in COLUMNS
    ]
    fusion = FusionConfig(policy=policy, **OPTIONS.get(policy, {}))
    return RewardEngine.from_config(
        RewardsConfig(mounts=tuple(mounts), fusion=fusion),
        node_factory=lambda mount, folder: Said(COLUMNS[mount.name]),
    )


def step(number=1):
    texts = list("ABCD")
    return RewardBatch(
        sample_ids=texts, prompts=["?"] * 4, responses=texts, group_ids=[0] * 4, step=number,
        training=True,
    )  # fmt: skip


def shown(values):
    """As the page writes them; no -0.000."""
    return [f"{value + 0.0:.3f}".replace("-0.000", "0.000") for value in values]


def test_every_policy_of_the_project_is_in_the_example():
    named = {row[0].strip("`") for row in TABLES["policy", "A"][1:]}
    assert set(POLICIES) <= named
    assert {row[0].strip("`") for row in TABLES["policy", "correct"][1:]} == set(POLICIES) - {
        "constrained"
    }


@pytest.mark.parametrize("row", TABLES["policy", "A"][1:], ids=lambda row: row[0])
def test_the_fused_rewards(row):
    name, later = re.fullmatch(r"`(\w+)`(, next step)?", row[0]).groups()
    with build(name) as engine:
        table = engine.score(step())
        if later:
            engine.step_end(table)
            table = engine.score(step(2))
            assert table.metrics()["reward/short/multiplier"] == pytest.approx(0.0375)
    assert row[1:] == shown(table.fused)


@pytest.mark.parametrize("row", TABLES["policy", "correct"][1:], ids=lambda row: row[0])
def test_the_contributions_to_response_a(row):
    with build(row[0].strip("`")) as engine:
        mounts = engine.score(step()).explain(0)["mounts"]
    assert row[1:] == shown(mounts[name]["contribution"] for name in COLUMNS)


@pytest.mark.parametrize("row", TABLES["mount", "A"][1:], ids=lambda row: row[0])
def test_the_normalised_scores(row):
    name = re.match(r"`(\w+)`, `normalize: group`", row[0])[1]
    with build("weighted_sum", **{name: {"normalize": "group"}}) as engine:
        column = engine.score(step()).columns[name]
    assert row[1:] == shown(column.normalised)


def test_the_advantages_of_gdpo():
    [row] = TABLES["advantage", "A"][1:]
    with build("weighted_sum") as engine:
        columns = engine.score(step()).columns.values()
    everybody = torch.ones(4, dtype=torch.bool)
    result = gdpo_advantages(
        torch.from_numpy(np.stack([column.normalised for column in columns], axis=1)),
        torch.tensor(list(WEIGHTS.values())),
        torch.zeros(4, dtype=torch.int64),
        everybody,
        everybody,
        neutral=torch.from_numpy(np.stack([column.neutral for column in columns], axis=1)),
    )
    assert row[1:] == shown(result.values.tolist())
