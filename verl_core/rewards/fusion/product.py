"""`product`: the weighted geometric mean, in which one low score pulls the whole down."""

from __future__ import annotations

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
    A score of 0 makes the product 0, however small its weight.
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
        weighed = np.flatnonzero(weights)
        contributions = np.zeros(scores.shape)
        if not len(weighed):
            return Fused(np.zeros(len(scores)), contributions)
        _refuse_outside(scores, present, weighed)
        here = present[:, weighed]
        factors = np.where(here, scores[:, weighed], 1.0)
        zeros = factors == 0.0
        # The logarithm of 0 would turn an exponent that underflowed to 0 into NaN: zeros apart.
        logs = np.log(np.where(zeros, 1.0, factors))
        count, zero_count = here.sum(axis=1), zeros.sum(axis=1)
        values = _product(logs, weights[weighed])
        values[(count == 0) | (zero_count > 0)] = 0.0
        for place, mount in enumerate(weighed):
            others = np.where(np.arange(len(weighed)) == place, 0.0, weights[weighed])
            without = _product(logs, others)
            without[(count == here[:, place]) | (zero_count > zeros[:, place])] = 0.0
            contributions[:, mount] = np.where(here[:, place], values - without, 0.0)
        return Fused(values, contributions)


def _product(logs: Floats, weights: Floats) -> Floats:
    """(B,) Π scoreᵢ^(wᵢ / Σ w), column by column: a row's bits do not hang on its place."""
    total = np.zeros(len(logs))
    for column, part in enumerate(shares(weights)):
        if part:
            total += part * logs[:, column]
    return np.exp(total)


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
