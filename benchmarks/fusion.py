"""Seconds that each fusion policy takes for a table of rewards, and each way to normalise one.

The peer of `weighted_sum` is what a trainer does that holds its rewards in a torch tensor: weights
times rewards, summed over the mounts that are not NaN, in float64 too. The others have none.

    python benchmarks/fusion.py [--json] [--rows N] [--mounts M] [--group-size K]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Annotated

import numpy as np
import torch
import typer
from figures import Figure, show, warn_if_busy
from turns import in_turns

from verl_core.rewards.fusion.constrained import Constrained, ConstrainedConfig
from verl_core.rewards.fusion.lexicographic import Lexicographic
from verl_core.rewards.fusion.minimum import Minimum
from verl_core.rewards.fusion.product import Product
from verl_core.rewards.fusion.weighted_mean import WeightedMean
from verl_core.rewards.fusion.weighted_sum import WeightedSum
from verl_core.rewards.group_statistics import Grouping
from verl_core.rewards.normalize import RunningNormalizer, normalize_batch, normalize_group
from verl_reward_sdk.protocols import MountInfo

ROWS, MOUNTS = 1_000_000, 8
#: Seconds for `ROWS` rows of `MOUNTS` mounts.
TARGET = 0.3


def main(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = ROWS,
    mounts: Annotated[int, typer.Option(min=1, help="Mounts, of weight 1.")] = MOUNTS,
    group_size: Annotated[int, typer.Option(min=1, help="Rows a prompt.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is measured.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure the fusion policies: the median of seconds a table."""
    with redirect_stdout(sys.stderr):
        warn_if_busy()
        figures = measure(rows, mounts, group_size, repeats)
    show(
        f"{rows:,} rows x {mounts} mounts, groups of {group_size}, "
        f"the median of {repeats} times that each was measured in turn",
        figures,
        as_json=as_json,
        notes=["The peer: torch, (rewards * weights).nansum(dim=1) in float64."],
    )


def measure(rows: int, mounts: int, group_size: int, repeats: int) -> list[Figure]:
    """Every policy and every way to normalise one mount."""
    rng = np.random.default_rng(0)
    scores = np.asfortranarray(rng.random((rows, mounts)))  # a mount's column lies together
    present = np.ones((rows, mounts), dtype=bool, order="F")
    weights = np.ones(mounts)
    groups = np.arange(rows) // group_size
    infos = [MountInfo(f"m{i}", 1.0, "reward", (0.0, 1.0)) for i in range(mounts)]
    tensor, tensor_weights = torch.from_numpy(scores.copy(order="C")), torch.from_numpy(weights)

    work: dict[str, Callable[[], object]] = {}
    for policy in (
        WeightedSum(),
        WeightedMean(),
        Product(),
        Minimum(),
        Lexicographic(),
        Constrained(ConstrainedConfig(bounds={"m0": 0.5})),
    ):
        policy.check(infos)
        work[policy.name] = lambda policy=policy: policy.fuse(scores, present, weights, groups)
    work["torch"] = lambda: (tensor * tensor_weights).nansum(dim=1)

    live, neutral = np.ones(rows, dtype=bool), np.zeros(rows, dtype=bool)
    column, grouping, running = scores[:, 0], Grouping(groups), RunningNormalizer()
    running.update(column)
    work["normalize: group"] = lambda: normalize_group(column, grouping, live, neutral)
    work["normalize: batch"] = lambda: normalize_batch(column, grouping, live, neutral)
    work["normalize: running"] = lambda: running.normalize(column, grouping, live, neutral)

    seconds = in_turns(work, repeats)
    torch_seconds = seconds.pop("torch")
    target = TARGET if (rows, mounts) == (ROWS, MOUNTS) else None
    figures = [
        Figure(
            name if ":" not in name else f"{name}, of one mount",
            taken,
            None,
            "s",
            target=target if name == "weighted_sum" else None,
            higher_is_better=False,
        )
        for name, taken in seconds.items()
    ]
    beside = Figure("weighted_sum beside torch", seconds["weighted_sum"], torch_seconds, "s")
    return [figures[0], beside, *figures[1:]]


if __name__ == "__main__":
    typer.run(main)
