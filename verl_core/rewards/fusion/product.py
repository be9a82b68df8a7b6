"""`product`: the weighted geometric mean, in which one low score pulls the whole down."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from verl_core.rewards.fusion.weights import need_rewards, shares
from verl_reward_sdk.errors import ConfigError, ContractError
from verl_reward_sdk.protocols import Bools, Floats, Fused, MountInfo


class Product:
    """Π sᵢ^(wᵢ / Σ w) in float64, scores in [0, 1].

    - A mount of weight 0 is left out, whatever it scores: 0 to the power 0 is 1.
    - A mount that adds nothing to a row is left out of that row's product; the exponents of the
      others stay as they are (Σ w is over all mounts), as the contract has it for a step without
      any score of a mount. Its contribution there is 0.
    - Not additive. The contribution of a mount is the fused value minus the fused value of a config
      without that mount, so that the weights of the rest are divided by a smaller sum. A product of
      no mount is 0, the value of a reward that is not there.

    The product is taken as a sum of logarithms, so that many small factors do not underflow.
    """

    name = "product"
    additive = False

    def check(self, mounts: Sequence[MountInfo]) -> None:
        """Refuse a mount whose scores, after scale and clip, can leave [0, 1].

        A mount of weight 0 is looked at too: its weight may be raised while the run goes on.

        Raises:
            ConfigError: naming the mount and its range.
        """
        for mount in need_rewards(mounts, self.name):
            low, high = mount.score_range
            if not (low >= 0.0 and high <= 1.0):
                raise ConfigError(
                    f"product needs scores in [0, 1], and those of {mount.name} "
                    f"lie in [{low:g}, {high:g}]",
                    path=f"reward.{mount.name}",
                    hint="bring them there with scale: and clip: [0, 1], without normalize:",
                )

    def fuse(
        self, scores: Floats, present: Bools, weights: Floats, groups: npt.NDArray[np.int64]
    ) -> Fused:
        """Args and answer as in `verl_reward_sdk.FusionPolicy`.

        Raises:
            ContractError: a score lies outside [0, 1] (``on_error: {default: x}`` can bring one).
        """
        contributions = np.zeros(scores.shape)
        parts = shares(weights)
        weighed = np.flatnonzero(parts)
        if not len(weighed):
            return Fused(np.zeros(len(scores)), contributions)
        _refuse_outside(scores, present, weighed)
        logs = [_logs(scores[:, m], present[:, m], parts[m]) for m in weighed]
        after = _sums_from_the_right(logs)
        others = present[:, weighed].sum(axis=1)
        values = np.where(others > 0, np.exp(after[0]), 0.0)
        before = np.zeros(len(scores))
        for place, mount in enumerate(weighed):
            here = present[:, mount]
            rest = math.fsum(parts[m] for m in weighed if m != mount) or 1.0
            without = np.exp((before + after[place + 1]) / rest)
            without[others == here] = 0.0  # no other mount is left
            contributions[:, mount] = np.where(here, values - without, 0.0)
            before = before + logs[place]
        return Fused(values, contributions)


def _logs(scores: Floats, present: Bools, exponent: float) -> Floats:
    """(B,) log(score ** exponent): -inf for a score of 0, and 0 where the mount adds nothing."""
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(present, scores, 1.0))
    logs *= exponent
    return logs


def _sums_from_the_right(columns: Sequence[Floats]) -> list[Floats]:
    """Of n columns the n + 1 sums of columns[i:], the last of them 0.

    Sums from both ends give "all but one" without a subtraction, which -inf would not survive.
    """
    sums = [np.zeros(len(columns[0]))]
    for column in reversed(columns):
        sums.append(column + sums[-1])
    return sums[::-1]


def _refuse_outside(scores: Floats, present: Bools, weighed: npt.NDArray[np.int64]) -> None:
    for mount in weighed:
        column = scores[:, mount]
        wrong = ~((column >= 0.0) & (column <= 1.0)) & present[:, mount]
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ContractError(
                f"a score of reward number {int(mount) + 1} cannot be a factor",
                provider="fusion policy product",
                row=row,
                value=float(column[row]),
                bound="[0, 1] after scale and clip",
            )
