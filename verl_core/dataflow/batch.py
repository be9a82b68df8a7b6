"""What flows through the graph in one training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class StepBatch:
    """The columns of one step, with the figures that its nodes want logged.

    Args:
        step: 1-based training step.
        columns: column name -> value; rows first (tensors (B, …) or sequences of length B).
        metrics: metric name -> float, filled by the nodes.
    """

    step: int
    columns: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def get(self, name: str, default: Any = None) -> Any:
        return self.columns.get(name, default)

    def write(self, values: Mapping[str, Any]) -> None:
        self.columns.update(values)
