"""Rules in the order of their file, and the score that they give to a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from verl_reward_rules.conditions import Condition
from verl_reward_rules.texts import Texts
from verl_reward_sdk import RewardBatch

Source = Literal["response", "answer", "prompt"]

#: What ``on:`` can name, and where a batch has it.
SOURCES: dict[Source, Callable[[RewardBatch], Sequence[str]]] = {
    "response": lambda batch: batch.responses,
    "answer": lambda batch: batch.answer,
    "prompt": lambda batch: batch.prompt_text,
}


@dataclass(frozen=True)
class Rule:
    """One rule.

    Args:
        name: unique in its file.
        condition: what it asks.
        points: what is added where it holds; None for a duty.
        duty: ``must`` sets the lowest score where it does not hold, ``must_not`` where it does.
        reason: what a reader is told.
        on: which text of a row it looks at.
        negate: it holds where its condition does not.
    """

    name: str
    condition: Condition
    points: float | None
    duty: Literal["must", "must_not"] | None
    reason: str | None
    on: Source
    negate: bool

    @property
    def told(self) -> str:
        """How a reader sees that it fired: ``greeting +0.5 (greets the customer)``."""
        effect = "broken" if self.points is None else f"{self.points:+g}"
        return f"{self.name} {effect}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Outcome:
    """What rules say about B rows.

    Args:
        scores: (B,) float64.
        holds: rule name -> (B,) bool, where its condition holds.
        fired: B lists of the rules that changed the row's score, in file order.
    """

    scores: npt.NDArray[np.float64]
    holds: dict[str, npt.NDArray[np.bool_]]
    fired: list[list[Rule]]


@dataclass(frozen=True)
class RuleSet:
    """All rules of a file, and the bounds of their score."""

    rules: tuple[Rule, ...]
    base: float
    low: float
    high: float

    def evaluate(self, batch: RewardBatch) -> Outcome:
        """The base and the points of the rules that hold, cut to the bounds.

        A row that breaks a duty has the lowest score, whatever else holds.
        """
        texts = {on: Texts(SOURCES[on](batch)) for on in {rule.on for rule in self.rules}}
        total = np.full(len(batch), self.base, dtype=np.float64)
        broken = np.zeros(len(batch), dtype=bool)
        holds: dict[str, npt.NDArray[np.bool_]] = {}
        fired: list[list[Rule]] = [[] for _ in range(len(batch))]
        # Rule by rule, in file order: the sum of a row is then the same in every batch.
        for rule in self.rules:
            held = np.array(rule.condition.holds(texts[rule.on]), dtype=bool) ^ rule.negate
            holds[rule.name] = held
            acts = ~held if rule.duty == "must" else held
            if rule.points is None:
                broken |= acts
            else:
                total[acts] += rule.points
            for row in np.flatnonzero(acts):
                fired[row].append(rule)
        scores = np.where(broken, self.low, np.clip(total, self.low, self.high))
        return Outcome(scores=scores, holds=holds, fired=fired)
