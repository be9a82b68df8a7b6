"""A lease: what scoring may rely on from its first row to its last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Lease:
    """Revision of the weights and generation of every mount, fixed together.

    Args:
        revision: of the weights; 0 where they are frozen.
        weights: mount -> weight, in config order; gates have none.
        generations: mount -> generation of its provider, gates included.
        step: the step it was taken for, or None.
    """

    revision: int
    weights: Mapping[str, float]
    generations: Mapping[str, int]
    step: int | None = None

    def __post_init__(self) -> None:
        for name in ("weights", "generations"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
