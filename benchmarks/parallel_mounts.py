"""How well mounts run side by side: eight that wait, eight that burn Python in worker processes.

The peer of eight waiting mounts is one alone; that of eight burning ones is what one alone takes,
times eight, divided by the cores. All are measured in turn, on warm workers, through the engine:
what it asks, collects and fuses is counted.

    python benchmarks/parallel_mounts.py [--json] [--mounts N] [--seconds S]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from functools import partial
from typing import Annotated, Any

import typer
from figures import Figure, show, warn_if_busy
from slow_providers import Burns, Waits, WaitsAsync, burn
from turns import in_turns

from verl_core.config.mount import MountConfig
from verl_core.plugins import PluginRegistry
from verl_core.rewards import RewardEngine
from verl_core.rewards.build import MountBuilder
from verl_core.rewards.execution import Limits, Work, make_runner
from verl_core.rewards.execution.process_worker import Recipe
from verl_core.rewards.fusion.weighted_sum import WeightedSum
from verl_core.rewards.mount import Mount
from verl_reward_sdk import RewardBatch, RewardProvider

WAIT_TARGET, BURN_TARGET = 1.1, 1.15


def main(
    mounts: Annotated[int, typer.Option(min=1, help="Mounts side by side.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.001, help="What each waits or burns.")] = 0.1,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is measured.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure mounts side by side: the median of seconds a batch."""
    with redirect_stdout(sys.stderr):
        warn_if_busy()
        figures = measure(mounts, seconds, repeats)
    show(
        f"{mounts} mounts of {seconds:g} s each, "
        f"the median of {repeats} times that each was measured in turn",
        figures,
        as_json=as_json,
        notes=[
            "The peer of waiting mounts: one alone. Of burning ones: one alone,"
            f" times {mounts}, divided by {cores()} cores."
        ],
    )


def measure(mounts: int, seconds: float, repeats: int) -> list[Figure]:
    """Waiting mounts in each place, then burning ones in worker processes."""
    rounds = calibrated(seconds)
    kinds: dict[str, Callable[[], RewardProvider[Any]]] = {
        "async": partial(WaitsAsync, seconds),
        "thread": partial(Waits, seconds),
        "process": partial(Waits, seconds),
        "burn": partial(Burns, rounds),
    }
    batch = RewardBatch(sample_ids=["a"], prompts=["b"], responses=["c"])
    work: dict[str, Callable[[], object]] = {}
    with ExitStack() as stack:
        for kind, make in kinds.items():
            for count in (1, mounts):
                built = stack.enter_context(engine(kind, make, count))
                work[f"{kind} {count}"] = partial(built.score, batch)
        taken = in_turns(work, repeats)
    waiting = [
        Figure(
            f"{mounts} that wait, {kind}",
            taken[f"{kind} {mounts}"],
            taken[f"{kind} 1"],
            "s",
            target=WAIT_TARGET,
            higher_is_better=False,
        )
        for kind in ("async", "thread", "process")
    ]
    burning = Figure(
        f"{mounts} that burn, process",
        taken[f"burn {mounts}"],
        taken["burn 1"] * mounts / min(cores(), mounts),
        "s",
        target=BURN_TARGET,
        higher_is_better=False,
    )
    return [*waiting, burning]


def engine(kind: str, make: Callable[[], RewardProvider[Any]], count: int) -> RewardEngine:
    """An engine of so many equal mounts."""
    names = [f"m{number}" for number in range(count)]
    return RewardEngine(
        [Made(mount(name, kind, make)) for name in names],
        WeightedSum(),
        store=None,
        frozen=dict.fromkeys(names, 1.0),
        registry=PluginRegistry(),
    )


class Made(MountBuilder):
    """Gives a mount that is there: the providers are classes of this benchmark, no plugins."""

    def __init__(self, made: Mount) -> None:
        self.config, self.path, self.copies = made.config, made.path, False
        self._made = made

    def first(self) -> Mount:
        return self._made

    def assets(self, mount: Mount) -> tuple[str, ...]:
        return ()


def mount(name: str, kind: str, make: Callable[[], RewardProvider[Any]]) -> Mount:
    """One mount, where its kind belongs."""
    provider = make()
    execution = kind if kind in ("async", "thread") else "process"
    work = Work(Limits(), recipe=Recipe(name, make))
    return Mount(
        MountConfig(type=name, plugin=kind),
        provider,
        make_runner(execution, name=name, provider=provider, build=make, work=work, path=name),
        source=kind,
        path=f"reward.{name}",
        execution=execution,
        reads=frozenset(),
        score_range=provider.score_range,
    )


def calibrated(seconds: float) -> int:
    """Rounds of `burn` that take about so many seconds here."""
    rounds = 10_000
    while True:
        start = time.perf_counter()
        burn(rounds)
        taken = time.perf_counter() - start
        if taken >= 0.05:
            return max(1, int(rounds * seconds / taken))
        rounds *= 2


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    typer.run(main)
