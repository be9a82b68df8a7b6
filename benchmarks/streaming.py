"""How much of a judge hides behind generation: a rollout whose rows are scored as they end.

A small random model answers 8 prompts, 8 responses each, in 8 micro-batches of one prompt, with
lengths that spread. A judge takes as long for all rows together as the rollout alone, so a verdict
takes 1/64 of it. The peer of every figure is the rollout alone; all are measured in turn.

- `unlimited`: verdicts of all rows that are there run at once.
- `one at a time`: the judge gives one verdict after the other, so that those of the last prompt
  can hide behind nothing (1 + 1/8 at best).
- `not streamed`: the same judge, asked when the last row has ended.

    python benchmarks/streaming.py [--json] [--prompts P] [--responses N] [--tokens T]
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import typer
from figures import Figure, show, warn_if_busy
from transformers import LlamaConfig, LlamaForCausalLM
from turns import in_turns

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.hybrid.rollout.base import Ended, Rollout
from verl_core.hybrid.rollout.hf import HFRollout
from verl_core.rewards import RewardEngine, RewardTable
from verl_reward_sdk import AsyncRewardProvider, RewardBatch, RewardProvider
from verl_reward_sdk.provider import ProviderConfig

TARGET = 1.15
VOCABULARY = 1024


class Judge(AsyncRewardProvider[ProviderConfig]):
    """Waits for each of its verdicts; calls do not wait for each other."""

    def __init__(self, seconds: float) -> None:
        super().__init__(ProviderConfig())
        self.seconds = seconds

    async def score(self, batch: RewardBatch) -> list[float]:
        await asyncio.sleep(self.seconds * len(batch))
        return [1.0] * len(batch)


class OneAtATime(RewardProvider[ProviderConfig]):
    """The same, with one call after the other."""

    def __init__(self, seconds: float) -> None:
        super().__init__(ProviderConfig())
        self.seconds = seconds

    def score(self, batch: RewardBatch) -> list[float]:
        time.sleep(self.seconds * len(batch))
        return [1.0] * len(batch)


class Step:
    """A rollout of `prompts` x `responses` rows, alone or with rewards."""

    def __init__(self, prompts: int, responses: int, tokens: int) -> None:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
        stops = range(0, VOCABULARY, max(2, tokens // 2))  # half of `tokens`, at the median or so
        self._sampler = HFRollout(
            LlamaForCausalLM(config).eval(), stop_ids=stops, pad_id=0, batch_rows=responses
        )
        dice = np.random.default_rng(0)
        self._prompts = [dice.integers(0, VOCABULARY, 32) for _ in range(prompts)]
        self._n, self._tokens = responses, tokens
        self._ids = [f"{row}" for row in range(prompts * responses)]
        self._groups = [row // responses for row in range(prompts * responses)]

    def rollout(self, on_ended: Callable[[Ended], None] | None = None) -> Rollout:
        return self._sampler.generate(
            self._prompts, self._n, seed=1, max_new_tokens=self._tokens, on_ended=on_ended
        )

    def scored(self, rewards: RewardEngine, *, stream: bool) -> RewardTable:
        """Roll out and score, rows as they end or all at the end."""
        scoring = rewards.stream(self._ids, self._groups)
        if stream:
            self.rollout(lambda ended: scoring.submit(self._rows(ended.rows, ended.response_ids)))
        else:
            scoring.submit(self._rows(range(len(self._ids)), self.rollout().response_ids))
        scoring.run(rewards.mounts)
        return scoring.finish()

    def _rows(self, rows: Any, response_ids: Any) -> RewardBatch:
        return RewardBatch(
            sample_ids=[self._ids[row] for row in rows],
            prompts=["p"] * len(rows),
            responses=["r"] * len(rows),
            group_ids=[self._groups[row] for row in rows],
            response_ids=response_ids,
        )


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts, a micro-batch each.")] = 8,
    responses: Annotated[int, typer.Option(min=1, help="Responses a prompt.")] = 8,
    tokens: Annotated[int, typer.Option(min=2, help="Longest response.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is measured.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure a rollout with its rewards beside the rollout alone: the median of seconds."""
    with redirect_stdout(sys.stderr):
        warn_if_busy()
        figures = measure(Step(prompts, responses, tokens), prompts * responses, repeats)
    show(
        f"{prompts} micro-batches of {responses} responses, up to {tokens} tokens each; "
        f"the median of {repeats} times that each was measured in turn",
        figures,
        as_json=as_json,
        notes=["The peer: the rollout alone. The judge's verdicts together take as long."],
    )


def measure(step: Step, rows: int, repeats: int) -> list[Figure]:
    """A judge that is calibrated to the rollout, at once and one verdict at a time."""
    alone = in_turns({"alone": step.rollout}, 3)["alone"]
    with ExitStack() as stack:
        at_once = stack.enter_context(engine(Judge(alone / rows)))
        slow = stack.enter_context(engine(OneAtATime(alone / rows)))
        taken = in_turns(
            {
                "alone": step.rollout,
                "unlimited, streamed": partial(step.scored, at_once, stream=True),
                "one at a time, streamed": partial(step.scored, slow, stream=True),
                "one at a time, not streamed": partial(step.scored, slow, stream=False),
            },
            repeats,
        )
    peer = taken.pop("alone")
    return [
        Figure(
            f"rollout and judge, {name}",
            seconds,
            peer,
            "s",
            target=TARGET if name.startswith("unlimited") else None,
            higher_is_better=False,
        )
        for name, seconds in taken.items()
    ]


def engine(judge: RewardProvider[Any]) -> RewardEngine:
    """An engine of this judge alone."""
    mount = MountConfig(type="judge", node_class=f"streaming.{type(judge).__name__}")
    return RewardEngine.from_config(
        RewardsConfig(mounts=(mount,)), node_factory=lambda config, folder: judge
    )


if __name__ == "__main__":
    typer.run(main)
