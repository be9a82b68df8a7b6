"""What every rollout engine takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from verl_reward_sdk import ConfigError, VerlRewardError


class RolloutError(VerlRewardError):
    """A rollout that may not be trained on, such as one of a model that answers NaN."""


@dataclass(frozen=True)
class SamplingParams:
    """How responses are sampled.

    Args:
        max_new_tokens: at most so many tokens a response, the end token included.
        temperature: logits are divided by it; 0 takes the likeliest token (greedy).
        top_p: sample from the fewest likeliest tokens that hold this share; 1 for all.
        top_k: sample from the `top_k` likeliest tokens, before `top_p`; 0 for all.
        seed: row i of a rollout draws the same random numbers whatever rows stand beside it.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}; it must be finite and >= 0")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}; it must be in (0, 1]")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; it must be >= 0 (0 for all tokens)")


@dataclass(frozen=True)
class Rollout:
    """The responses to P prompts, n each: row p * n + j is the j-th response to prompt p.

    Args:
        response_ids: int64 token ids a row, 1 to max_new_tokens of them. The end token that the
            policy sampled is one of them, the last (as in verl and TRL): it was sampled, so its
            probability is trained. Nothing is padded.
        finish_reason: ``stop`` where the last token is an end token, else ``length``.
        log_probs: float32 a row, of each token under the distribution it was drawn from
            (temperature, top_k and top_p applied; greedy: the untempered softmax); None where
            they were not asked for.
        tokens: all response tokens together.
        seconds: wall time.
    """

    response_ids: list[NDArray[np.int64]]
    finish_reason: list[str]
    log_probs: list[NDArray[np.float32]] | None
    tokens: int
    seconds: float

    def __len__(self) -> int:
        return len(self.response_ids)


@dataclass(frozen=True)
class Ended:
    """Rows of a rollout that have just ended, in ascending order, as `Rollout` will hold them.

    Args:
        rows: their numbers.
        response_ids: int64 token ids a row.
        finish_reason: ``stop`` or ``length`` a row.
    """

    rows: list[int]
    response_ids: list[NDArray[np.int64]]
    finish_reason: list[str]


OnEnded: TypeAlias = Callable[[Ended], None]


class RolloutEngine(Protocol):
    """Samples responses from the policy's current weights."""

    def generate(
        self,
        prompt_ids: Sequence[NDArray[np.int64]],
        n: int,
        *,
        seed: int,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        with_log_probs: bool = False,
        on_ended: OnEnded | None = None,
    ) -> Rollout:
        """`n` responses to each prompt, in prompt order.

        Args:
            prompt_ids: one array of token ids a prompt, none empty.
            n: responses a prompt, at least 1.
            seed, max_new_tokens, temperature, top_p, top_k: see `SamplingParams`.
            with_log_probs: also give the sampled tokens' log-probabilities.
            on_ended: called in this thread as rows end, while others are still sampled: each row
                once. It changes nothing of what is sampled; what it raises ends the rollout.

        Raises:
            ConfigError: a parameter is out of bounds, a prompt is empty, or one leaves no room for
                `max_new_tokens`.
            RolloutError: the model answers NaN or infinity.
        """
        ...
