"""What the metric names of `RewardTable.metrics` say: which mounts and gates there are."""

from __future__ import annotations

from collections.abc import Iterable

REVISION = "weights/revision"


def reward_mounts(keys: Iterable[str]) -> tuple[str, ...]:
    """Names of the mounts that have a weight, in the order of `keys`."""
    return tuple(
        dict.fromkeys(
            key.removeprefix("weights/")
            for key in keys
            if key.startswith("weights/") and key != REVISION
        )
    )


def gates(keys: Iterable[str]) -> tuple[str, ...]:
    """Names of the gates, in the order of `keys`: the mounts that have a rate."""
    return tuple(
        dict.fromkeys(
            key.removeprefix("reward/").removesuffix("/rate")
            for key in keys
            if key.startswith("reward/") and key.endswith("/rate")
        )
    )
