"""The weights of a control plane elsewhere, for a trainer that scores in its own process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from verl_core.rewards.schedules import parse_schedule, value_at
from verl_reward_sdk.errors import ConfigError, VerlRewardError

logger = logging.getLogger(__name__)


class RemoteWeights:
    """What a control plane says the weights are, asked once a step.

    The first answer of a step holds for the whole step, as a lease does. Where the control plane
    does not answer, the last known weights go on, and the log says so once; one that never answered
    is an error. Not for several processes: each would ask at another moment.

    Args:
        url: its address; the token is ``VERL_REWARD_TOKEN``.
        mounts: the rewards it must have weights for, no more and no fewer.
    """

    def __init__(self, url: str, mounts: frozenset[str]) -> None:
        from verl_core.control.client import ControlClient

        self._client = ControlClient(url)
        self._mounts = mounts
        self._last: dict[str, Any] | None = None
        self._step: int | None = None
        self._silent = False

    def at(self, step: int | None) -> tuple[int, dict[str, float]]:
        """Revision, and mount -> weight at `step` (None: as the control plane shows them).

        Raises:
            ConfigError: its mounts are others than ours, or it refused to answer.
            VerlRewardError: it has never answered.
        """
        if self._last is None or step is None or step != self._step:
            self._last, self._step = self._asked(), step
        return int(self._last["revision"]), _values(self._last, step)

    def _asked(self) -> dict[str, Any]:
        try:
            answer = self._client.weights()
        except ConfigError:
            raise
        except VerlRewardError as error:
            if self._last is None:
                raise
            if not self._silent:
                logger.warning("the weights stay at revision %s: %s", self._last["revision"], error)
            self._silent = True
            return self._last
        self._silent = False
        odd = sorted(self._mounts ^ set(answer["weights"]))
        if odd:
            raise ConfigError(
                f"the control plane at {self._client.url} and this config differ in the mounts"
                f" {', '.join(odd)}",
                hint="serve the same config: verl-reward serve run.yaml",
            )
        return answer


def _values(answer: Mapping[str, Any], step: int | None) -> dict[str, float]:
    values = {name: float(weight) for name, weight in answer["weights"].items()}
    if step is None:
        return values
    for name, schedule in answer["schedules"].items():
        if name not in answer["pinned"]:
            values[name] = value_at(parse_schedule(schedule), step)
    return values
