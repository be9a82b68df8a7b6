"""Which prompts a step trains on: a function of the seed and the step alone.

Nothing is remembered between steps, so a resumed run draws the very prompts that an unbroken one
would have drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PromptRow:
    """One data-set row, ready for the model.

    Args:
        row_id: the row's own ``id`` column, else its 1-based line.
        prompt: as the data set gave it: text or messages.
        ids: the prompt's token ids, chat template applied.
        columns: its data-set columns.
        opened: the thinking that the prompt opens for the response: ``<think>`` and what follows.
    """

    row_id: str
    prompt: Any
    ids: NDArray[np.int64]
    columns: dict[str, Any]
    opened: str = ""


class PromptOrder:
    """Epochs of shuffled rows, cut into steps; a step may straddle two epochs.

    Args:
        rows: how many rows there are.
        per_step: prompts a step.
        seed: of the shuffles; each epoch has one of its own.
        shuffle: False keeps the file's order.
    """

    def __init__(self, rows: int, per_step: int, *, seed: int, shuffle: bool) -> None:
        self.rows, self.per_step = rows, per_step
        self.seed, self.shuffle = seed, shuffle

    def of_step(self, step: int) -> list[int]:
        """Row numbers of the 1-based `step`, `per_step` of them."""
        first = (step - 1) * self.per_step
        return [self._at(place) for place in range(first, first + self.per_step)]

    def _at(self, place: int) -> int:
        epoch, offset = divmod(place, self.rows)
        if not self.shuffle:
            return offset
        return int(np.random.default_rng([self.seed, epoch]).permutation(self.rows)[offset])
