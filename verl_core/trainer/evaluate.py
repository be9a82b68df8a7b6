"""Held-out evaluation: the same prompts, seeds and frozen rewards each time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from verl_core.config import RunConfig
from verl_core.dataflow import StepBatch
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.table import RewardTable
from verl_core.trainer.model_set import ModelSet
from verl_core.trainer.nodes.actor import lay_out
from verl_core.trainer.prompts import PromptRow
from verl_core.trainer.reward import TensorShelf, reward_batch

#: Mixed into the run's seed, so that evaluation never draws a training step's random numbers.
_EVAL_SEED = 0x45564C


class Evaluator:
    """Samples the policy's answers to held-out prompts and scores them by ``eval_reward``.

    Args:
        cfg: the run.
        models: the policy as it is when `run` is called.
        engine: the evaluation's own engine, at fixed weights.
        rows: held-out prompts.
        shelf: where `RewardNode`s among the mounts find tensors; None where there are none.
    """

    def __init__(
        self,
        cfg: RunConfig,
        models: ModelSet,
        engine: RewardEngine,
        rows: Sequence[PromptRow],
        shelf: TensorShelf | None,
    ) -> None:
        self.cfg, self.models, self.engine = cfg, models, engine
        self.rows, self.shelf = rows, shelf

    def run(self, path: Path, step: int, advance: Callable[[int], None]) -> dict[str, float]:
        """Evaluate all rows, write them to `path` (JSON lines, in one rename), give the means.

        Args:
            path: ``eval/before.jsonl`` and the like.
            step: the last trained step, noted in the batch.
            advance: told how many prompts were done.
        """
        draft = path.with_name(f".{path.name}.draft")
        path.parent.mkdir(parents=True, exist_ok=True)
        totals: dict[str, list[tuple[float, int]]] = {}
        size = max(1, self.cfg.rollout.batch_rows // self.cfg.rollout.eval_n)
        with draft.open("w", encoding="utf-8") as file:
            for start in range(0, len(self.rows), size):
                part = self.rows[start : start + size]
                batch, table = self._score(part, start, step)
                for i in range(len(batch["sample_ids"])):
                    row = part[i // self.cfg.rollout.eval_n]
                    file.write(json.dumps(self._record(batch, table, i, row)) + "\n")
                for name, value in table.metrics().items():
                    totals.setdefault(name, []).append((value, len(part)))
                advance(len(part))
        os.replace(draft, path)
        return {f"eval/{name}": _mean(parts) for name, parts in totals.items()}

    def _score(
        self, rows: Sequence[PromptRow], start: int, step: int
    ) -> tuple[StepBatch, RewardTable]:
        rollout = self.models.rollout.generate(
            [row.ids for row in rows],
            self.cfg.rollout.eval_n,
            seed=_EVAL_SEED ^ (self.cfg.seed * 1_000_003 + start),
            max_new_tokens=self.cfg.rollout.max_new_tokens,
            temperature=self.cfg.rollout.temperature,
            top_p=self.cfg.rollout.top_p,
            top_k=self.cfg.rollout.top_k,
        )
        columns = lay_out(
            rows, self.cfg.rollout.eval_n, rollout.response_ids, step, self.models.tokenizer
        )
        columns["finish_reason"] = list(rollout.finish_reason)
        batch = StepBatch(step, columns)
        if self.shelf is not None:
            columns["old_log_probs"] = self.models.policy_log_probs(columns)
            columns["ref_log_prob"] = self.models.reference_log_probs(columns)
            self.shelf.lay_batch(batch)
        return batch, self.engine.score(reward_batch(batch, training=False))

    def _record(
        self, batch: StepBatch, table: RewardTable, i: int, row: PromptRow
    ) -> dict[str, Any]:
        reference = row.columns.get(self.cfg.data.reference_key)
        if isinstance(reference, list):
            reference = reference[0] if reference else None
        fused = float(table.fused[i])
        tokens = len(batch["response_ids"][i])
        record = {
            "step": batch.step,
            "sample_id": f"{row.row_id}-{i % self.cfg.rollout.eval_n}",
            "prompt_id": row.row_id,
            "prompt": prompt_text(row.prompt),
            "response": batch["responses"][i],
            "reference": reference,
            "finish_reason": batch["finish_reason"][i],
            "tokens": tokens,
            "fused": fused if np.isfinite(fused) else None,
            "explain": table.explain(i),
        }
        if isinstance(reference, str):
            encoded = self.models.tokenizer(reference, add_special_tokens=False)["input_ids"]
            record["reference_tokens"] = len(encoded) + 1  # and the end token, as in `tokens`
        return record


def _mean(parts: Sequence[tuple[float, int]]) -> float:
    """The mean of batches' means, by their prompts; one without the figure has no part."""
    return sum(value * prompts for value, prompts in parts) / sum(n for _, n in parts)


def evaluated_step(path: Path) -> int | None:
    """After which step the evaluation in `path` was made; None where there is none."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        return int(json.loads(file.readline())["step"])


def prompt_text(prompt: Any) -> str:
    """A prompt as one text for people: the messages after the system's, each on its line."""
    if isinstance(prompt, str):
        return prompt
    said = [message for message in prompt if message.get("role") != "system"] or list(prompt)
    return "\n".join(str(message.get("content", "")) for message in said)
