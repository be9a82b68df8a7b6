"""Seconds that GDPO takes to turn a table of rewards into advantages, beside the formula in torch.

The peer is GDPO as a trainer writes it whose groups all have the same size and lie together: the
tensor is reshaped to (groups, rows, mounts), normalised, weighted, summed and whitened, in float64
as ours. It knows no masks, no groups of other sizes or in another order; what ours takes for those
is measured too.

    python benchmarks/advantage.py [--json] [--rows N] [--mounts M] [--group-size K]
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
from torch import Tensor
from turns import in_turns

from verl_core.trainer.advantage.gdpo import gdpo_advantages

ROWS, MOUNTS, GROUP_SIZE = 1_000_000, 8, 8
#: Seconds for `ROWS` rows of `MOUNTS` mounts in groups of `GROUP_SIZE`.
TARGET = 1.0


def main(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = ROWS,
    mounts: Annotated[int, typer.Option(min=1, help="Mounts, of weight 1.")] = MOUNTS,
    group_size: Annotated[int, typer.Option(min=2, help="Rows a prompt.")] = GROUP_SIZE,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is measured.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure GDPO: the median of seconds a table."""
    rows -= rows % group_size
    with redirect_stdout(sys.stderr):
        warn_if_busy()
        figures = measure(rows, mounts, group_size, repeats)
    show(
        f"{rows:,} rows x {mounts} mounts, groups of {group_size}, "
        f"the median of {repeats} times that each was measured in turn",
        figures,
        as_json=as_json,
        notes=["The peer: GDPO in torch on whole groups of one size, without masks, in float64."],
    )


def measure(rows: int, mounts: int, group_size: int, repeats: int) -> list[Figure]:
    """GDPO on a whole table, and with a tenth of the rows masked, and with the rows shuffled."""
    rng = np.random.default_rng(0)
    scores, weights = torch.from_numpy(rng.random((rows, mounts))), torch.ones(mounts).double()
    groups = np.arange(rows) // group_size
    whole = torch.ones(rows, dtype=torch.bool)
    masked = torch.from_numpy(rng.random(rows) >= 0.1)
    together, apart = torch.from_numpy(groups), torch.from_numpy(rng.permutation(groups))

    work: dict[str, Callable[[], object]] = {
        "gdpo": lambda: gdpo_advantages(scores, weights, together, whole, whole),
        "gdpo, a tenth masked": lambda: gdpo_advantages(scores, weights, together, masked, whole),
        "gdpo, rows shuffled": lambda: gdpo_advantages(scores, weights, apart, whole, whole),
        "torch": lambda: in_torch(scores, weights, group_size),
    }
    seconds = in_turns(work, repeats)
    torch_seconds = seconds.pop("torch")
    target = TARGET if (rows, mounts, group_size) == (ROWS, MOUNTS, GROUP_SIZE) else None
    figures = [
        Figure(
            name,
            taken,
            None,
            "s",
            target=target if name == "gdpo" else None,
            higher_is_better=False,
        )
        for name, taken in seconds.items()
    ]
    beside = Figure("gdpo beside torch", seconds["gdpo"], torch_seconds, "s")
    return [figures[0], beside, *figures[1:]]


def in_torch(scores: Tensor, weights: Tensor, group_size: int) -> Tensor:
    """(B,) advantages, where every group has `group_size` rows that lie together."""
    grouped = scores.view(-1, group_size, scores.shape[1])
    std, mean = torch.std_mean(grouped, dim=1, keepdim=True)
    total = ((grouped - mean) / (std + 1e-6)).view(scores.shape) @ weights
    std, mean = torch.std_mean(total)
    return (total - mean) / (std + 1e-6)


if __name__ == "__main__":
    typer.run(main)
