"""A plugin for tests, installed as files only: rewards that do the worst, whatever the rows."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import misbehaving
from pydantic import Field

from verl_reward_sdk import AsyncRewardProvider, RewardProvider, hookimpl
from verl_reward_sdk.provider import ProviderConfig

VERL_REWARD_API = 1


class OrdersConfig(ProviderConfig):
    """What `misbehaving.Obedient` can be told."""

    options: dict[str, Any] = Field(default_factory=dict)


class Orders(misbehaving.Obedient):
    """Does what its rows' responses say."""

    name = "orders"
    Config = OrdersConfig

    def __init__(self, config: OrdersConfig) -> None:
        super().__init__(config.options)
        self.config = config


class DeedConfig(ProviderConfig):
    """One deed for every batch."""

    does: Literal["well", "hang", "segfault", "grandchild", "hold_the_gil", "short", "fail"]
    note: Path | None = None
    """Its own and its grandchildren's process numbers, or the responses that it scored, a line
    each."""


class Deed(RewardProvider[DeedConfig]):
    """Does the same to every batch; its scores are a hundredth of the responses' lengths."""

    name = "deed"
    score_range = (0.0, 1e6)

    def score(self, batch: Any) -> Any:
        getattr(self, self.config.does, lambda: None)()
        scores = [len(response) / 100 for response in batch.responses]
        if self.config.does == "well":
            self._note(*batch.responses)
        return scores[1:] if self.config.does == "short" else scores

    def _note(self, *lines: object) -> None:
        if self.config.note is not None:
            with self.config.note.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)

    def hang(self) -> None:
        time.sleep(600)

    def segfault(self) -> None:
        ctypes.string_at(0)

    def grandchild(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self._note(os.getpid(), child.pid)
        time.sleep(600)

    def hold_the_gil(self) -> None:
        sum(range(10**12))

    def fail(self) -> None:
        raise LookupError("no such word")


class RowScores(RewardProvider[ProviderConfig]):
    """A row's response is its score; ``none`` is an abstention."""

    name = "rows"

    def score(self, batch: Any) -> list[float | None]:
        return [None if text == "none" else float(text) for text in batch.responses]


class Later(AsyncRewardProvider[ProviderConfig]):
    """Lengths, as a coroutine."""

    name = "later"

    async def score(self, batch: Any) -> list[float]:  # type: ignore[override]
        return [float(len(response)) for response in batch.responses]


REWARDS = (Orders, Deed, RowScores, Later)


@hookimpl
def verl_reward_providers() -> Any:
    yield from REWARDS
