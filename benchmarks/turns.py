"""Several pieces of work, measured in turn, so that a machine that slows down slows all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def in_turns(work: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median of seconds that each takes; once each before, which is not counted.

    Args:
        work: name -> what is done.
        repeats: how often each is measured.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}
