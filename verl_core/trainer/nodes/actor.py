"""The rollout stage: the policy answers each prompt n times, the reference model judges it.

Rows are laid out by prompt: row ``p * n + j`` is response j to prompt p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from verl_core.dataflow import Node, StepBatch
from verl_core.trainer.encoding import decode_responses
from verl_core.trainer.model_set import ModelSet
from verl_core.trainer.prompts import PromptRow


class ActorNode(Node):
    """Samples responses.

    Reads ``rows`` (P prompts). Writes, for B = P * n rows: ``sample_ids, prompts, columns,
    prompt_ids, response_ids`` (ragged token ids), ``group_ids, group_index`` (B,) int64,
    ``responses, responses_raw, finish_reason``, and the padded tensors ``input_ids,
    attention_mask`` (B, P+R), ``generated_ids, response_mask`` (B, R); with `log_probs` also
    ``old_log_probs`` (B, R).

    Args:
        models: samples from the policy's current weights, and decodes.
        sampling: keyword arguments of `RolloutEngine.generate`, ``n`` included, ``seed`` not.
        seed: of the run; a step's own follows from it and the step's number.
        with_log_probs: a later node reads ``old_log_probs``.
    """

    name = "actor"
    reads: ClassVar[frozenset[str]] = frozenset({"rows"})

    def __init__(
        self,
        models: ModelSet,
        sampling: Mapping[str, Any],
        *,
        seed: int,
        with_log_probs: bool,
    ) -> None:
        self.models = models
        self.sampling, self.seed = dict(sampling), seed
        self.with_log_probs = with_log_probs
        extra = {"old_log_probs"} if with_log_probs else set()
        self.writes = ROLLOUT_COLUMNS | extra  # type: ignore[misc]

    def run(self, batch: StepBatch) -> Mapping[str, Any]:
        rows: Sequence[PromptRow] = batch["rows"]
        n = int(self.sampling["n"])
        rollout = self.models.rollout.generate(
            [row.ids for row in rows],
            seed=step_seed(self.seed, batch.step),
            **self.sampling,
        )
        written = lay_out(rows, n, rollout.response_ids, batch.step, self.models.tokenizer)
        written["finish_reason"] = list(rollout.finish_reason)
        lengths = [len(ids) for ids in rollout.response_ids]
        batch.metrics["response/length_mean"] = float(np.mean(lengths))
        batch.metrics["response/truncated"] = float(
            np.mean([reason == "length" for reason in rollout.finish_reason])
        )
        batch.metrics["perf/rollout_tokens_per_s"] = rollout.tokens / max(rollout.seconds, 1e-9)
        if self.with_log_probs:
            written["old_log_probs"] = self.models.policy_log_probs(written)
        return written


class RefModelNode(Node):
    """Log-probabilities of the responses under the frozen reference model, (B, R) float32."""

    name = "ref_model"
    reads: ClassVar[frozenset[str]] = frozenset(
        {"prompt_ids", "response_ids", "response_mask", "group_index"}
    )
    writes: ClassVar[frozenset[str]] = frozenset({"ref_log_prob"})

    def __init__(self, models: ModelSet) -> None:
        self.models = models

    def run(self, batch: StepBatch) -> Mapping[str, Any]:
        return {"ref_log_prob": self.models.reference_log_probs(batch.columns)}


ROLLOUT_COLUMNS = frozenset(
    {
        "sample_ids",
        "prompts",
        "columns",
        "prompt_ids",
        "response_ids",
        "group_ids",
        "group_index",
        "responses",
        "responses_raw",
        "finish_reason",
        "input_ids",
        "attention_mask",
        "generated_ids",
        "response_mask",
    }
)


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for each step, from the run's seed alone (SeedSequence, 63 bits)."""
    state = np.random.SeedSequence([seed & 0xFFFFFFFF, step]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def lay_out(
    rows: Sequence[PromptRow], n: int, response_ids: Sequence[Any], step: int, tokenizer: Any
) -> dict[str, Any]:
    """The columns of ``len(rows) * n`` responses, ``finish_reason`` aside."""
    repeated = [row for row in rows for _ in range(n)]
    prompt_ids = [row.ids for row in repeated]
    pad = int(tokenizer.pad_token_id)
    prompts_padded, prompts_mask = _pad(prompt_ids, pad, left=True)
    responses, responses_raw = decode_responses(tokenizer, response_ids)
    generated, response_mask = _pad(response_ids, pad, left=False)
    names = list(dict.fromkeys(name for row in rows for name in row.columns))
    return {
        "sample_ids": [f"{step}-{place}-{j}" for place in range(len(rows)) for j in range(n)],
        "prompts": [row.prompt for row in repeated],
        "columns": {name: [row.columns.get(name) for row in repeated] for name in names},
        "prompt_ids": prompt_ids,
        "response_ids": list(response_ids),
        "group_ids": [f"{step}-{place}" for place in range(len(rows)) for _ in range(n)],
        "group_index": torch.arange(len(rows)).repeat_interleave(n),
        "responses": responses,
        "responses_raw": responses_raw,
        "input_ids": torch.cat([prompts_padded, generated], dim=1),
        "attention_mask": torch.cat([prompts_mask, response_mask], dim=1),
        "generated_ids": generated,
        "response_mask": response_mask,
    }


def _pad(rows: Sequence[Any], pad: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """``(ids, mask)`` (B, T) int64 of ragged rows, padded on one side."""
    width = max((len(row) for row in rows), default=0)
    ids = np.full((len(rows), width), pad, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place] = row
        mask[i, place] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)
