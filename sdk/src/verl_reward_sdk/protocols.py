"""The shapes that hooks speak of. The core implements them; a plugin only needs their form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class MountInfo:
    """What a fusion policy may know of a mount when it checks whether it can serve it."""

    name: str
    weight: float
    role: str
    score_range: tuple[float, float]
    has_when: bool = False


@dataclass(frozen=True, eq=False)
class Fused:
    """A policy's answer.

    Args:
        values: (B,) float64, the fused reward before gates.
        contributions: (B, M) float64. Where the policy is additive they sum to `values`;
            elsewhere each is the fused value minus the fused value without that mount.
    """

    values: Floats
    contributions: Floats


@runtime_checkable
class FusionPolicy(Protocol):
    """How scores of several mounts become one reward.

    Beside these members a policy may have:

    - ``Config``: a pydantic model of its options, which stand beside ``policy:`` in ``fusion:``. It
      is then constructed with an instance of it, else without arguments.
    - ``needs_groups = True``: it compares the responses of a prompt, and is refused without any.
    - ``factors(weights)``: additive ones, (M,) float64: what a mount's score is multiplied by in
      the sum, where that is not its weight. Token scores are scaled by it.
    - ``step_end(raw_means)``, ``state()`` and ``load_state(state)``: it learns. After each finished
      training step it is told mount -> mean raw score of the scored rows; what `state` gives
      (JSON-ready) is kept in checkpoints. ``metrics()`` gives figures to log with every batch.
    """

    name: str
    additive: bool

    def check(self, mounts: Sequence[MountInfo]) -> None:
        """Raise `ConfigError` if these mounts, with these weights, cannot be fused by it.

        Called at load, and before a live change of weights is taken.
        """
        ...

    def fuse(self, scores: Floats, present: Bools, weights: Floats, groups: Any) -> Fused:
        """Fuse one step.

        Args:
            scores: (B, M) float64, mounts in config order; NaN where `present` is False.
            present: (B, M) bool; False where the mount adds nothing to this row.
            weights: (M,) float64, finite and >= 0.
            groups: (B,) int64, rows of one prompt share a number.
        """
        ...


@runtime_checkable
class RewardTableView(Protocol):
    """What observers may read of a scored batch. It never changes."""

    sample_ids: Sequence[str]
    step: int | None
    revision: int
    fused: Floats
    masked: Bools

    def explain(self, row: int) -> Mapping[str, Any]:
        """Every component of one row: raw score, weight, contribution, status, reason."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """The step's figures: ``reward/<mount>/mean`` and so on."""
        ...


@runtime_checkable
class CommandRegistry(Protocol):
    """Where a plugin's own commands of the command line go."""

    def add_command(self, name: str, function: Callable[..., Any], *, help: str = "") -> None:
        """Register `function` (typer's conventions for its parameters) as ``verl-reward name``."""
        ...
