"""Held-out evaluation: the same prompts, seeds and frozen rewards each time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from verl_core.config import RunConfig
from verl_core.dataflow import StepBatch
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.failures import Failures
from verl_core.rewards.lease import Lease
from verl_core.rewards.table import RewardTable
from verl_core.trainer.model_set import ModelSet
from verl_core.trainer.nodes.actor import lay_out, row_names
from verl_core.trainer.prompts import PromptRow
from verl_core.trainer.reward import TensorShelf, reward_batch
from verl_core.trainer.split import BEST_OF, BY_SOURCE, SOURCE, Means, best_of, of_sources

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

    def run(
        self,
        path: Path,
        step: int,
        advance: Callable[[int], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float] | None:
        """Evaluate all rows, write them to `path` (JSON lines, in one rename), give the means; None
        where `stop` cut it. Nothing is left of one that was cut, or that failed.

        ``eval/reward/…`` as `RewardTable.metrics`; as in training
        ``eval/reward/by_source/<source>/fused|<mount>/mean`` for each ``data_source``, ``none`` for
        the rows without one; with n responses a prompt (`eval_n` > 1)
        ``eval/reward/best_of/<n>/fused|<mount>/mean`` for the response with the highest fused
        reward, which is marked ``selected`` in `path`. They are written beside it too (``.json``).

        Args:
            path: ``eval/before.jsonl`` and the like.
            step: the last trained step, noted in the batch.
            advance: told how many prompts were done.
            stop: asked before each batch of prompts.

        Raises:
            RewardError: a mount failed on more of all rows than it may. How many of them lie in one
                batch says nothing, nor that a gate leaves no live row there.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        drafts = {end: path.with_name(f".{path.stem}{end}.draft") for end in (".json", path.suffix)}
        try:
            figures = self._evaluate(drafts[path.suffix], step, advance, stop)
            if figures is None:
                return None
            drafts[".json"].write_text(json.dumps({"step": step, **figures}), "utf-8")
            for end, draft in drafts.items():  # the rows last: they say that it was made
                os.replace(draft, path.with_suffix(end))
        finally:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
        return figures

    def _evaluate(
        self, draft: Path, step: int, advance: Callable[[int], None], stop: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Write the rows to `draft`; their figures."""
        totals: dict[str, list[tuple[float, int]]] = {}
        means, n, failures = Means(), self.cfg.rollout.eval_n, Failures()
        size = max(1, self.cfg.rollout.batch_rows // n)
        lease = self.engine.lease()  # of all of it
        with draft.open("w", encoding="utf-8") as file:
            for start in range(0, len(self.rows), size):
                if stop():
                    return None
                part = self.rows[start : start + size]
                batch, table = self._score(part, start, step, failures, lease)
                best = best_of(table.fused, n)
                for i in range(len(batch["sample_ids"])):
                    record = self._record(batch, table, i, part[i // n])
                    if n > 1:
                        record["selected"] = bool(best[i])
                    file.write(json.dumps(record) + "\n")
                means.add("eval/reward", table, np.ones(len(table), dtype=bool))
                for source, rows in of_sources(self._columns(batch, len(table))).items():
                    means.add(f"eval/reward/{BY_SOURCE}/{source}", table, rows)
                if n > 1:
                    means.add(f"eval/reward/{BEST_OF}/{n}", table, best)
                for name, value in table.metrics().items():
                    totals.setdefault(name, []).append((value, len(part)))
                advance(len(part))
        failures.refuse(f" of the evaluation after step {step}")
        figures = {f"eval/{name}": _mean(parts) for name, parts in totals.items()}
        return figures | means.figures()

    def _columns(self, batch: StepBatch, n: int) -> Mapping[str, Sequence[Any]]:
        """The data-set columns of n rows, the source's too where rows of another batch name one."""
        columns: Mapping[str, Sequence[Any]] = batch["columns"]
        if SOURCE in columns or not any(SOURCE in row.columns for row in self.rows):
            return columns
        return {SOURCE: [None] * n}

    def _score(
        self,
        rows: Sequence[PromptRow],
        start: int,
        step: int,
        failures: Failures,
        lease: Lease,
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
        n = self.cfg.rollout.eval_n
        columns = lay_out(
            rows,
            n,
            rollout.response_ids,
            rollout.finish_reason,
            row_names(f"eval-{step}", len(rows), n, start),
            self.models.tokenizer,
        )
        batch = StepBatch(step, columns)
        if self.shelf is not None:
            columns["old_log_probs"] = self.models.policy_log_probs(columns)
            columns["ref_log_prob"] = self.models.reference_log_probs(columns)
            self.shelf.lay_batch(batch)
        scoring = self.engine.open(reward_batch(batch, training=False), lease=lease)
        scoring.run(self.engine.mounts, failures)
        return batch, scoring.finish()

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
