"""The process that a runner's threads or workers live in: a fork of it has none of them."""

from __future__ import annotations

import os

from verl_reward_sdk.errors import ProviderError


class Owner:
    """Whose threads or workers a runner's are.

    Locks and queues are of no use in a fork: whoever held a lock when it was made never gives it
    back there. So `elsewhere` is asked before any lock is taken.

    Args:
        what: belongs to a process, for the error.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid: int | None = None

    def take(self) -> None:
        """Threads or workers are about to be started, by this process."""
        if self._pid is None:
            self._pid = os.getpid()

    @property
    def elsewhere(self) -> bool:
        """Whether this process is a fork of the one that started them."""
        return self._pid is not None and self._pid != os.getpid()

    def error(self) -> ProviderError:
        """Why no call can be made here, and what to do."""
        return ProviderError(
            f"its {self._what} belong to another process: this one is a fork (process {os.getpid()}"
            f" of {self._pid}). Make the engine in the process that scores, after the fork, or"
            " start that process by spawn"
        )
