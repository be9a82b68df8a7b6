"""The weights of a control plane elsewhere, for a trainer that scores in its own process."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Hashable, Mapping
from typing import Any

from verl_core.rewards.schedules import parse_schedule, value_at
from verl_reward_sdk.errors import ConfigError, VerlRewardError

logger = logging.getLogger(__name__)

#: Seconds in which a control plane that answered before, and is being started again, may come back.
_PATIENCE = 5.0
_PAUSE = 0.25
_LONGEST = 200  # letters of a group's name


class RemoteWeights:
    """What a control plane says the weights are: one lease a step, or a group without one.

    All processes of a training that share a `session` get the same revision for a step, whoever
    asks first, and whatever is changed in between. Where the control plane does not answer, the
    last known weights go on, and the log says so once: that is no lease, and processes may differ
    until it is back. One that never answered is an error.

    Args:
        url: its address; the token is ``VERL_REWARD_TOKEN``.
        mounts: the rewards it must have weights for, no more and no fewer.
        session: names this start of this training, and no other: what it leases is fixed for good.
    """

    def __init__(self, url: str, mounts: frozenset[str], session: str) -> None:
        from verl_core.control.client import ControlClient

        self._client = ControlClient(url)
        self._mounts = mounts
        self._session = session
        self._last: dict[str, Any] | None = None
        self._leased: tuple[int, tuple[int, dict[str, float]]] | None = None
        self._silent = False

    def at(self, step: int | None, group: Hashable | None = None) -> tuple[int, dict[str, float]]:
        """Revision, and mount -> weight at `step`.

        With a step its lease; else that of the group; with neither what is in force now.

        Raises:
            ConfigError: its mounts are others than ours, it is another run than before, or it
                refused to answer.
            VerlRewardError: it has never answered.
        """
        if step is None and group is None:
            return self._now()
        if step is None:
            return self._lease(None, group)
        if self._leased is None or step != self._leased[0]:
            self._leased = step, self._lease(step, None)
        return self._leased[1]

    def _now(self) -> tuple[int, dict[str, float]]:
        try:
            found = self._read()
        except ConfigError:
            raise
        except VerlRewardError as error:
            found = self._kept(error)
        return int(found["revision"]), _values(found, None)

    def _lease(self, step: int | None, group: Hashable | None) -> tuple[int, dict[str, float]]:
        name = _group_name(self._session, step, group)
        until = time.monotonic() + (0.0 if self._silent else _PATIENCE)
        while True:
            try:
                known = self._read() if self._last is None else self._last
                found = self._checked(self._client.lease(known["run_id"], name, step))
                if found["revision"] != known["revision"]:
                    self._read()  # its schedules, should it be silent later
                self._silent = False
                return int(found["revision"]), _values(found, None)
            except ConfigError:
                raise
            except VerlRewardError as error:
                if self._last is not None and time.monotonic() < until:
                    time.sleep(_PAUSE)
                    continue
                last = self._kept(error)
                return int(last["revision"]), _values(last, step)

    def _read(self) -> dict[str, Any]:
        self._last = self._checked(self._client.weights())
        self._silent = False
        return self._last

    def _kept(self, error: VerlRewardError) -> dict[str, Any]:
        """The last known weights, where there are any."""
        if self._last is None:
            raise error
        if not self._silent:
            logger.warning("the weights stay at revision %s: %s", self._last["revision"], error)
        self._silent = True
        return self._last

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        odd = sorted(self._mounts ^ set(answer["weights"]))
        if odd:
            raise ConfigError(
                f"the control plane at {self._client.url} and this config differ in the mounts"
                f" {', '.join(odd)}",
                hint="serve the same config: verl-reward serve run.yaml",
            )
        return answer


def _group_name(session: str, step: int | None, group: Hashable | None) -> str:
    """What a step's, or a group's, lease is called: printable, and not too long."""
    name = f"{session} step {step}" if step is not None else f"{session} group {group}"
    if len(name) <= _LONGEST and name.isprintable():
        return name
    return f"sha256 {hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _values(answer: Mapping[str, Any], step: int | None) -> dict[str, float]:
    values = {name: float(weight) for name, weight in answer["weights"].items()}
    if step is None:
        return values
    for name, schedule in answer["schedules"].items():
        if name not in answer["pinned"]:
            values[name] = value_at(parse_schedule(schedule), step)
    return values
