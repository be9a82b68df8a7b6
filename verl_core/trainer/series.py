"""What the metric names of a step say: which mounts there are, and under which key a figure stands.

The names are those of ``RewardTable.metrics()`` and of the trainer: ``reward/<mount>/mean``,
``reward/<gate>/rate``, ``weights/<mount>``, ``actor/loss``, ``perf/rollout_tokens_per_s``.
"""

from __future__ import annotations

from verl_core.rewards.metric_names import REVISION as REVISION
from verl_core.rewards.metric_names import gates as gates
from verl_core.rewards.metric_names import reward_mounts as reward_mounts

FUSED = "reward/fused/mean"
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


def mean_of(mount: str) -> str:
    return f"reward/{mount}/mean"


def rate_of(gate: str) -> str:
    return f"reward/{gate}/rate"


def weight_of(mount: str) -> str:
    return f"weights/{mount}"


def multiplier_of(mount: str) -> str:
    """What `constrained` adds to the weight of a mount with a bound."""
    return f"reward/{mount}/multiplier"
