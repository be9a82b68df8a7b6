"""Bounds that hold wherever a value comes from: a config, a schedule, HTTP."""

from __future__ import annotations

#: Of a weight. Rewards are of the order of 1; far beyond this a float64 sum loses the other mounts,
#: and the squares that a step's spread is made of overflow.
MAX_WEIGHT = 1e6
