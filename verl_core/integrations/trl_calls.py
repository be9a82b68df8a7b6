"""From the arguments of a TRL reward function to a `RewardBatch`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from verl_core.integrations.trl_rules import Trainer
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import RewardError
from verl_reward_sdk.turns import Message, Prompt, last_turn

_CALLS = itertools.count()
"""Numbers the calls of this process, so that a sample id is unique in a run."""


@dataclass(frozen=True, eq=False)
class TrlCall:
    """One call of a reward function.

    Args:
        prompts, completions: B texts, or B lists of messages.
        completion_ids: B lists of token ids, or None.
        rest: TRL's other keyword arguments: data-set columns, ``trainer_state``, ``log_extra``,
            ``log_metric``, ``environments``.
    """

    prompts: Sequence[Prompt]
    completions: Sequence[Prompt]
    completion_ids: Sequence[Sequence[int]] | None
    rest: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def owner(self) -> Any:
        """The trainer, whose bound method ``log_metric`` is; None where there is none."""
        return getattr(self.rest.get("log_metric"), "__self__", None)

    @property
    def training(self) -> bool:
        """TRL tells no function whether it evaluates; its model knows, as TRL itself asks it."""
        return bool(getattr(getattr(self.owner, "model", None), "training", True))

    @property
    def step(self) -> int | None:
        """Optimiser steps done so far."""
        step = getattr(self.rest.get("trainer_state"), "global_step", None)
        return None if step is None else int(step)

    def batch(self, reads: Collection[str], trainer: Trainer) -> RewardBatch:
        """The rows, with the columns that somebody reads.

        Raises:
            RewardError: they are not in groups as the trainer's arguments say.
        """
        n, training, step = len(self), self.training, self.step
        columns = {
            name: values
            for name, values in self.rest.items()
            if isinstance(values, Sequence) and not isinstance(values, str) and len(values) == n
        }
        kept = {name: columns[name] for name in reads if name in columns}
        if len(kept) < len(reads):
            kept = columns  # so that the error names the columns that there are
        first = f"{'' if step is None else step}-{'t' if training else 'e'}-{next(_CALLS)}"
        return RewardBatch(
            sample_ids=[f"{first}-{i}" for i in range(n)],
            prompts=self.prompts,
            responses=[last_turn(completion) for completion in self.completions],
            finish_reason=self._finish_reasons(),
            trajectories=self._trajectories(),
            columns=kept,
            group_ids=self._groups(trainer, training=training),
            response_ids=None if self.completion_ids is None else _arrays(self.completion_ids),
            step=step,
            training=training,
        )

    def _groups(self, trainer: Trainer, *, training: bool) -> Sequence[Hashable] | None:
        if trainer.is_async:
            return [0] * len(self)
        if trainer.unknown_groups(training=training) is not None:
            return None
        size = trainer.group if training else trainer.eval_group
        n, prompts = len(self), self.prompts
        if n % size:
            raise RewardError(
                f"TRL handed over {n} rows, which are not whole groups of {size}"
                f" (num_generations{'' if training else '_eval'}): give the reward functions the"
                " arguments of the trainer that calls them"
            )
        for row in range(n):
            if row % size and prompts[row] != prompts[row - 1]:
                raise RewardError(
                    f"rows {row - 1} and {row} of a call belong to one group of {size} by the"
                    " trainer's arguments, and have different prompts: give the reward functions"
                    " the arguments of the trainer that calls them"
                )
        return [row // size for row in range(n)]

    def _finish_reasons(self) -> Sequence[str]:
        """By TRL's own rule: a response whose last token ends nothing was cut off."""
        eos = getattr(self.owner, "eos_token_ids", None)
        if eos is None or self.completion_ids is None:
            return ()
        ends = {*eos, getattr(getattr(self.owner, "_tokenizer", None), "pad_token_id", None)}
        return ["stop" if ids and ids[-1] in ends else "length" for ids in self.completion_ids]

    def _trajectories(self) -> Sequence[Sequence[Message]] | None:
        """The whole exchanges, where one has more than an answer."""
        if all(isinstance(c, str) or len(c) <= 1 for c in self.completions):
            return None
        pairs = zip(self.prompts, self.completions, strict=True)
        return [[*_messages(p, "user"), *_messages(c, "assistant")] for p, c in pairs]


def _messages(text: Prompt, role: str) -> Sequence[Message]:
    return [{"role": role, "content": text}] if isinstance(text, str) else text


def _arrays(rows: Sequence[Sequence[int]]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """B read-only views into one array: an array of its own a row costs more than its scores."""
    stops = np.cumsum([len(row) for row in rows]).tolist()
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=stops[-1] if stops else 0)
    flat.flags.writeable = False
    return [flat[stop - len(row) : stop] for stop, row in zip(stops, rows, strict=True)]
