"""Providers that wait or burn, for `parallel_mounts.py`. Worker processes import this module."""

from __future__ import annotations

import asyncio
import time

from verl_reward_sdk import AsyncRewardProvider, RewardBatch, RewardProvider
from verl_reward_sdk.provider import ProviderConfig


class Waits(RewardProvider[ProviderConfig]):
    """Sleeps for a number of seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(ProviderConfig())
        self.seconds = seconds

    def score(self, batch: RewardBatch) -> list[float]:
        time.sleep(self.seconds)
        return [1.0] * len(batch)


class WaitsAsync(AsyncRewardProvider[ProviderConfig]):
    """The same in a coroutine."""

    def __init__(self, seconds: float) -> None:
        super().__init__(ProviderConfig())
        self.seconds = seconds

    async def score(self, batch: RewardBatch) -> list[float]:
        await asyncio.sleep(self.seconds)
        return [1.0] * len(batch)


class Burns(RewardProvider[ProviderConfig]):
    """Counts to a number, in Python."""

    def __init__(self, rounds: int) -> None:
        super().__init__(ProviderConfig())
        self.rounds = rounds

    def score(self, batch: RewardBatch) -> list[float]:
        burn(self.rounds)
        return [1.0] * len(batch)


def burn(rounds: int) -> int:
    """Hold one core and the GIL for so many rounds."""
    total = 0
    for number in range(rounds):
        total += number & 3
    return total
