"""How the calls of one mount are made, wherever its provider runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verl_core.rewards.execution.call import Limits
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.provider import RewardProvider

if TYPE_CHECKING:
    from verl_core.rewards.execution.breaker import Breaker
    from verl_core.rewards.execution.recipe import Recipe
    from verl_core.rewards.execution.retry import Retries
    from verl_core.rewards.execution.slots import HostSlots

Build = Callable[[], RewardProvider[Any]]
Score = Callable[[RewardBatch], Any]


@dataclass(frozen=True)
class Work:
    """What a runner needs beyond its provider.

    Args:
        limits: the deadlines.
        workers: the most calls at once; None: as the place has it.
        retries: how a failed call is tried again, or None.
        breaker: stops calling after failures in a row, or None.
        slots: the limit shared with whoever speaks to the same host, or None.
        recipe: how another process makes the provider; None where none can.
        secrets: texts that no log may show.
    """

    limits: Limits
    workers: int | None = None
    retries: Retries | None = None
    breaker: Breaker | None = None
    slots: HostSlots | None = None
    recipe: Recipe | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)


def scorer(provider: RewardProvider[Any], retries: Retries | None) -> Score:
    """The provider's `score`, tried again as `retries` says."""
    if retries is None:
        return provider.score
    from verl_core.rewards.execution.retry import retrying

    return retrying(provider.score, retries)
