"""What the places of an `execution: process` mount share: the calls in line, the workers alive."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from verl_core.rewards.execution.call import Call, Limits
from verl_core.rewards.execution.process_child import Child
from verl_core.rewards.execution.slots import HostSlots
from verl_reward_sdk.errors import ProviderError, ProviderTimeout


@dataclass(frozen=True)
class Down:
    """A place that has no worker, and why; until `retry_at` (monotonic) it does not try again."""

    retry_at: float
    reason: str


@dataclass
class Line:
    """Calls that wait for a worker. `lock` guards all that changes.

    Args:
        name: the mount's.
        recipe: how a worker makes its provider, as a frame.
        limits: the mount's deadlines.
        places: how many workers there may be at once.
        slots: the limit that calls share with whoever else speaks to the same host.
        setup_timeout: seconds a worker has to start and set up its provider.
        secrets: texts that the log of what workers print must not show.
    """

    name: str
    recipe: bytes
    limits: Limits
    places: int
    slots: HostSlots | None
    setup_timeout: float
    secrets: tuple[str, ...] = field(repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock)
    queue: deque[Call] = field(default_factory=deque)
    children: set[Child] = field(default_factory=set)
    down: dict[int, Down] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    labels: tuple[str, ...] | None = None  # as the worker that was set up last told

    @property
    def closed(self) -> bool:
        """Whether no call is taken any more."""
        return self.over.is_set()

    def too_late(self) -> ProviderTimeout:
        """A call's error at its deadline."""
        seconds = f"{self.limits.timeout:g} s"
        return ProviderTimeout(f"no answer within timeout: {seconds}; its worker was killed")

    # -- the lock is held --------------------------------------------------------------------------

    def refusal(self, now: float) -> str | None:
        """Why no worker will take a call at `now`; None where one may."""
        if len(self.down) < self.places or any(d.retry_at <= now for d in self.down.values()):
            return None
        first = min(self.down.values(), key=lambda down: down.retry_at)
        return (
            f"it could not be set up again: {first.reason}"
            f" (the next try is in {first.retry_at - now:.1f} s, with the next call)"
        )

    def drop(self, error: ProviderError) -> None:
        """Fail every call that has not begun."""
        for call in self.queue:
            call.fail(error)
        self.queue.clear()

    def give_up_waiting(self, now: float) -> None:
        """Fail the calls in line where no worker can take them for now."""
        refusal = self.refusal(now)
        if refusal is not None:
            self.drop(ProviderError(refusal))
