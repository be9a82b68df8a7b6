"""The learning rate of a step."""

from __future__ import annotations

import math


def learning_rate(base: float, step: int, *, steps: int, warmup: int, schedule: str) -> float:
    """The rate of the 1-based `step`: a linear warm-up, then ``constant``, ``linear`` or
    ``cosine`` down to 0 behind `steps`. A function of the step alone."""
    if warmup and step <= warmup:
        return base * step / warmup
    if schedule == "constant":
        return base
    progress = min(max(step - 1 - warmup, 0) / max(steps - warmup, 1), 1.0)
    left = 1 - progress if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return base * left
