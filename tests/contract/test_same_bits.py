"""The contract's section "The same bits"."""

from __future__ import annotations

import numpy as np
import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import FusionConfig, RewardsConfig
from verl_core.rewards import RewardEngine
from verl_reward_sdk import RewardBatch

ODD = """
import math
from verl_reward_sdk import ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1

class OddConfig(ProviderConfig):
    by: float

class Odd(RewardProvider[OddConfig]):
    name = "odd"
    score_range = (0.0, 1.0)

    def score(self, batch):
        by = self.config.by
        return [None if "7" in r else abs(math.sin(by * len(r))) for r in batch.responses]

@hookimpl
def verl_reward_providers():
    return [Odd]
"""
PLACES = [
    ("inline", "inline", "inline"),
    ("thread", "inline", "process"),
    ("process", "process", "thread"),
]


def scored(policy, normalize, places, weights=(0.1, 0.7, 1.3)):
    mounts = tuple(
        MountConfig(
            type=f"m{i}",
            plugin="odd",
            init_kwargs={"by": 0.37 + i},
            execution=place,
            weight=1.0 if policy in ("min", "lexicographic") else weight,
            normalize=normalize,
            timeout=120.0,
        )
        for i, (place, weight) in enumerate(zip(places, weights, strict=True))
    )
    n = 24
    batch = RewardBatch(
        sample_ids=[f"s{i}" for i in range(n)],
        prompts=["p"] * n,
        responses=["x" * (3 * i % 17) + str(i) for i in range(n)],
        group_ids=[f"g{i // 4}" for i in range(n)],
        training=True,
        step=1,
    )
    config = RewardsConfig(mounts=mounts, fusion=FusionConfig(policy=policy))
    with RewardEngine.from_config(config) as built:
        table = built.score(batch)
    columns = [(c.scores.tobytes(), c.normalised.tobytes()) for c in table.columns.values()]
    return table, (columns, table.fused.tobytes(), table.mask_reason)


@pytest.mark.parametrize(
    ("policy", "normalize"),
    [
        ("weighted_sum", "none"),
        ("weighted_sum", "group"),
        ("weighted_mean", "batch"),
        ("product", "none"),
        ("min", "running"),
        ("lexicographic", "none"),
    ],
)
def test_the_same_bits_wherever_mounts_run(plugin_site, policy, normalize):
    """The same batch, weights, seed and generations give the same bits whatever the execution, for
    providers that are deterministic on the same slice; scores and fusion are float64."""
    plugin_site.add("odd", rewards={"odd": "odd_reward"}, files={"odd_reward.py": ODD})
    found = [scored(policy, normalize, places) for places in PLACES]
    assert found[0][1] == found[1][1] == found[2][1]
    table = found[0][0]
    assert table.fused.dtype == np.float64
    assert len(set(table.fused.tolist())) > 4
    if policy == "weighted_sum" and normalize == "none":
        columns = [column.normalised for column in table.columns.values()]
        live = ~table.masked
        summed = columns[0] * 0.1 + columns[1] * 0.7 + columns[2] * 1.3
        assert summed[live].tobytes() == table.fused[live].tobytes()
        turned = columns[2] * 1.3 + columns[1] * 0.7 + columns[0] * 0.1
        assert turned[live].tobytes() != table.fused[live].tobytes()  # config order it is
