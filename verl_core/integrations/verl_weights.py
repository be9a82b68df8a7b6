"""Which weights a row is scored with inside verl, whose reward workers are separate processes.

A `Leases` gives the same lease to all rows of one training step (where verl tells the step, as its
V1 trainer does), or of one prompt group. It takes them from one of three places:

- the config alone: every worker computes the same weights from the same schedules;
- a ``weights.db`` file (`RewardEngine` with `store_path`): the first worker that asks for a step
  decides for all workers on machines that share the file, and after a restart too;
- a control plane, ``VERL_REWARD_URL``: the first worker that asks it for a step, or for a group
  where there is no step, decides for all workers, wherever they run.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol

from verl_core.integrations.remote_weights import RemoteWeights
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.lease import Lease

#: Leases that are remembered: steps, or prompt groups, under way at once.
_KEPT = 4096
#: Without a step or a group to go by, the control plane is asked at most so often, in seconds.
_AGE = 1.0


class Source(Protocol):
    """Where leases come from. `Leases` asks from one thread at a time."""

    def take(self, step: int | None, group: Hashable | None) -> Lease:
        """A lease for the rows of this step (>= 0), or, where that is None, of this group."""
        ...


class Leases:
    """One lease a step or group, taken once. May be asked from many threads."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._taken: OrderedDict[Hashable, Lease] = OrderedDict()

    def known(self, step: int | None, group: Hashable | None) -> Lease | None:
        """The lease, where it was taken before; waits for nobody."""
        return self._taken.get(_key(step, group))

    def take(self, step: int | None, group: Hashable | None) -> Lease:
        """The lease, taken now if need be; this may wait for a file or for the network.

        A row with neither step nor group has a lease of its own.
        """
        key = _key(step, group)
        with self._lock:
            lease = None if key is None else self._taken.get(key)
            if lease is None:
                lease = self._source.take(step, group)
                if key is not None:
                    self._taken[key] = lease
                    while len(self._taken) > _KEPT:
                        self._taken.popitem(last=False)
            return lease


def _key(step: int | None, group: Hashable | None) -> Hashable | None:
    if step is not None:
        return "step", step
    return None if group is None else ("group", group)


class EngineWeights:
    """Weights of the engine's own store: those of the config, or of its ``weights.db``."""

    def __init__(self, engine: RewardEngine) -> None:
        self._engine = engine

    def take(self, step: int | None, group: Hashable | None) -> Lease:
        if step is None and self._engine.store is not None:
            self._engine.store.refresh()
        return self._engine.lease(step)


def session() -> str:
    """Names this start of the training in all of its workers: what Ray calls its driver's job. A
    namespace that nobody named is a random one, and a job's number is new in its cluster."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return secrets.token_hex(8)
    context = ray.get_runtime_context()
    return f"{context.namespace} {context.get_job_id()}"


class ControlPlaneWeights:
    """Weights of a run that is served elsewhere: its leases, ``POST /api/v1/reward/leases``.

    A control plane that does not answer when this is made is an error. Later on the weights that
    were read last serve on, with a warning: every row's ``weights/revision`` tells.

    Args:
        engine: its mounts must be those of the run that is served.
        url: the control plane's address.
        session: the same in all workers of this training, and in no other: see `RemoteWeights`.

    Raises:
        ConfigError: the run that is served has other mounts, or weights that the fusion policy
            cannot serve; the token is missing or wrong (`take` too).
        VerlRewardError: no control plane answers.
    """

    def __init__(self, engine: RewardEngine, url: str, session: str) -> None:
        self._engine = engine
        mounts = {name for name, mount in engine.mounts.items() if mount.role == "reward"}
        self._remote = RemoteWeights(url, frozenset(mounts), session)
        self._lease = self._read(None, None)
        self._read_at = time.monotonic()

    def take(self, step: int | None, group: Hashable | None) -> Lease:
        """The step's lease, scheduled weights as they are at it; without a step the group's."""
        if step is not None or group is not None:
            return self._read(step, group)
        if time.monotonic() - self._read_at >= _AGE:
            self._lease = self._read(None, None)
            self._read_at = time.monotonic()
        return self._lease

    def _read(self, step: int | None, group: Hashable | None) -> Lease:
        revision, weights = self._remote.at(step, group)
        self._engine.check_weights(weights)
        return self._engine.lease_of(revision, weights, step)
