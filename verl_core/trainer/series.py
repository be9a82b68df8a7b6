"""What the metric names of a step say: which mounts there are, and under which key a figure stands.

The names are those of ``RewardTable.metrics()`` and of the trainer: ``reward/<mount>/mean``,
``reward/<gate>/rate``, ``weights/<mount>``, ``actor/loss``, ``perf/rollout_tokens_per_s``.
"""

from __future__ import annotations

from collections.abc import Iterable

FUSED = "reward/fused/mean"
REVISION = "weights/revision"
LOSS = "actor/loss"
KL = "actor/kl"
CRITIC_LOSS = "critic/loss"
EXPLAINED = "critic/explained_variance"
LENGTH = "response/length_mean"
TRUNCATED = "response/truncated"
ROLLOUT_SPEED = "perf/rollout_tokens_per_s"
UPDATE_SPEED = "perf/update_tokens_per_s"
TRAINED_TOKENS = "actor/trained_tokens"
MASKED = "reward/masked"
FLAT_GROUPS = "reward/groups_flat"
STEP_SECONDS = "timing_s/step"


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


def mean_of(mount: str) -> str:
    return f"reward/{mount}/mean"


def rate_of(gate: str) -> str:
    return f"reward/{gate}/rate"


def weight_of(mount: str) -> str:
    return f"weights/{mount}"


def multiplier_of(mount: str) -> str:
    """What `constrained` adds to the weight of a mount with a bound."""
    return f"reward/{mount}/multiplier"
