"""A lease: what scoring may rely on from its first row to its last."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_core.rewards.mount import Mount


@dataclass(frozen=True)
class Lease:
    """Revision of the weights and generation of every mount, fixed together.

    Args:
        revision: of the weights; 0 where they are frozen.
        weights: mount -> weight, in config order; gates have none.
        generations: mount -> generation of its provider, gates included.
        step: the step it was taken for, or None.
        mounts: name -> mount in that generation, of the engine that gave it; None for a lease made
            elsewhere, which is scored with the generations that run now. A generation that was
            replaced is closed when nobody holds a lease of it any more.
    """

    revision: int
    weights: Mapping[str, float]
    generations: Mapping[str, int]
    step: int | None = None
    mounts: Mapping[str, Mount] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("weights", "generations"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def contents(self) -> Mapping[str, str]:
        """Mount -> `Mount.content` of its generation; empty for a lease made elsewhere."""
        return {name: mount.content for name, mount in (self.mounts or {}).items()}

    def end(self) -> None:
        """Let go of the generations. What is being scored under it goes on; nothing more may be."""
        object.__setattr__(self, "mounts", MappingProxyType({}))


class StepLeases:
    """The leases of steps: one a step, the same whenever it is asked for. From any thread.

    The newest step's is held, and an earlier one's as long as anybody else holds it: a step that
    long ago ended must not keep its generations open.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: weakref.WeakValueDictionary[int, Lease] = weakref.WeakValueDictionary()
        self.newest: Lease | None = None

    def get(self, step: int, take: Callable[[], Lease]) -> Lease:
        """The lease of `step`; taken now where it was not yet."""
        with self._lock:
            found = self._leases.get(step)
            if found is None or found.mounts == {}:
                found = self._leases[step] = take()
                if self.newest is None or self.newest.step is None or step >= self.newest.step:
                    self.newest = found
            return found
