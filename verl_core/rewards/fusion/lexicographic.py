"""`lexicographic`: mounts in order of importance; a later one only breaks ties of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Discriminator, Field, Tag

from verl_core.config.base import Model
from verl_core.rewards.fusion.weights import need_rewards, need_switches
from verl_reward_sdk.errors import ConfigError, did_you_mean
from verl_reward_sdk.protocols import Bools, Floats, Fused, MountInfo

Tolerance = Annotated[float, Field(ge=0.0)]


def _form(value: Any) -> str:
    return "each" if isinstance(value, dict) else "all"


class LexicographicConfig(Model):
    """Options of ``policy: lexicographic``."""

    tolerance: Annotated[
        Annotated[Tolerance, Tag("all")] | Annotated[dict[str, Tolerance], Tag("each")],
        Discriminator(_form),
    ] = 0.0
    """Scores are compared by floor(score / tolerance), 0 exactly; one for all mounts or one each
    (0 for those that are not named)."""


class Lexicographic:
    """Within a group, the share of the other rows that are strictly worse: the best has 1.

    Rows are compared by ⌊s / tolerance⌋ of the first mount in config order, ties by the second, and
    so on. Weights are 0 (left out) or 1: an order has no other.

    - A mount that adds nothing to a row counts there as the lowest score, so that no row rises by
      not being asked.
    - A row to which no mount adds anything stands outside its group: nobody is compared with it,
      and it is 0. So is a row that is alone in its group.
    - Not additive: a mount's contribution is the share minus the share in the order without it,
      among the same rows.

    Args:
        config: the options; without them every comparison is exact.
    """

    name = "lexicographic"
    additive = False
    needs_groups = True
    Config = LexicographicConfig

    def __init__(self, config: LexicographicConfig | None = None) -> None:
        self.config = config or LexicographicConfig()
        self._names: tuple[str, ...] = ()

    def check(self, mounts: Sequence[MountInfo]) -> None:
        """Refuse weights other than 0 and 1, and a tolerance for a mount that is not there.

        Raises:
            ConfigError: naming the mount.
        """
        rewards = need_rewards(mounts, self.name)
        need_switches(rewards, self.name)
        names = tuple(mount.name for mount in rewards)
        tolerance = self.config.tolerance
        if isinstance(tolerance, Mapping):
            for name in tolerance:
                if name not in names:
                    raise ConfigError(
                        f"tolerance: names {name!r}, which is no mount with role: reward",
                        path=f"fusion.tolerance.{name}",
                        hint=did_you_mean(name, names),
                    )
        self._names = names

    def fuse(
        self, scores: Floats, present: Bools, weights: Floats, groups: npt.NDArray[np.int64]
    ) -> Fused:
        """Args and answer as in `verl_reward_sdk.FusionPolicy`; `check` comes first."""
        values, contributions = np.zeros(len(scores)), np.zeros(scores.shape)
        order = np.flatnonzero(weights > 0.0)
        rows = np.flatnonzero(present[:, order].any(axis=1))
        if not len(rows):
            return Fused(values, contributions)
        group = _codes(groups[rows])
        columns = [_codes(self._keys(scores[rows, m], present[rows, m], int(m))) for m in order]
        heads = [group]  # the order up to a mount, within the group
        for column in columns:
            heads.append(_then(heads[-1], column))
        values[rows] = _share_below(heads[-1], group)
        tail = _Codes(np.zeros(len(rows), dtype=np.int64), 1)  # the order behind a mount
        for place in range(len(order) - 1, -1, -1):
            without = _share_below(_then(heads[place], tail), group)
            mount = order[place]
            contributions[rows, mount] = np.where(present[rows, mount], values[rows] - without, 0.0)
            tail = _then(columns[place], tail)
        return Fused(values, contributions)

    def _keys(self, scores: Floats, present: Bools, mount: int) -> Floats:
        tolerance = self.config.tolerance
        if isinstance(tolerance, Mapping):
            tolerance = tolerance.get(self._names[mount], 0.0)
        with np.errstate(over="ignore"):  # beyond 1e308 all are equally high
            keys = np.floor(scores / tolerance) if tolerance > 0.0 else scores
        return np.where(present, keys, -np.inf)


@dataclass(frozen=True)
class _Codes:
    """Places of B rows in an order with ties: (B,) int64 from 0 to count - 1, none left out."""

    values: npt.NDArray[np.int64]
    count: int


def _codes(keys: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> _Codes:
    found, values = np.unique(keys, return_inverse=True)
    return _Codes(values.astype(np.int64, copy=False), len(found))


def _then(first: _Codes, second: _Codes) -> _Codes:
    """The order by `first`, ties of it by `second`."""
    if second.count == 1 or first.count == len(first.values):
        return first
    if first.count == 1:
        return second
    keys = first.values * second.count + second.values
    span = first.count * second.count
    if span > 4 * len(keys):
        return _codes(keys)
    there = np.zeros(span, dtype=bool)  # few keys: counted, not sorted
    there[keys] = True
    places = np.cumsum(there) - 1
    return _Codes(places[keys], int(places[-1]) + 1)


def _share_below(order: _Codes, group: _Codes) -> Floats:
    """(B,) float64: of the other rows in the row's group, the share with a lower place.

    Args:
        order: by group first, so that all rows of a lower place and another group are in a lower
            group.
    """
    sizes = np.bincount(group.values, minlength=group.count)
    rows_at = np.bincount(order.values, minlength=order.count)
    below = (np.cumsum(rows_at) - rows_at)[order.values]
    before_group = (np.cumsum(sizes) - sizes)[group.values]
    others = sizes[group.values] - 1
    return (below - before_group) / np.maximum(others, 1)
