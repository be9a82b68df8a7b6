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
from verl_core.hybrid.rollout.base import Ended
from verl_core.rewards import StreamedScoring
from verl_core.rewards.decoding import ResponseDecoder
from verl_core.trainer.model_set import ModelSet
from verl_core.trainer.prompts import PromptRow
from verl_core.trainer.reward import reward_batch


class ActorNode(Node):
    """Samples responses, and hands them on to the step's `StreamedScoring` as they end, where the
    trainer has opened one (``scoring``): rewards are computed while others are still sampled.

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
        layout = Layout(rows, n, row_names(batch.step, len(rows), n), self.models.tokenizer)
        scoring: StreamedScoring | None = batch.get("scoring")

        def hand_on(ended: Ended) -> None:
            layout.take(ended.rows, ended.response_ids, ended.finish_reason)
            if scoring is not None:
                part = StepBatch(batch.step, layout.reward_columns(ended.rows))
                scoring.submit(reward_batch(part, training=True))

        rollout = self.models.rollout.generate(
            [row.ids for row in rows],
            seed=step_seed(self.seed, batch.step),
            on_ended=hand_on,
            **self.sampling,
        )
        written = layout.columns()
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


#: Those that a response brings, in `Layout.take`.
RESPONSE_COLUMNS = ("response_ids", "finish_reason", "responses", "responses_raw")


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for each step, from the run's seed alone (SeedSequence, 63 bits)."""
    state = np.random.SeedSequence([seed & 0xFFFFFFFF, step]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def row_names(label: object, prompts: int, n: int, start: int = 0) -> tuple[list[str], list[str]]:
    """``(sample_ids, group_ids)`` of ``prompts * n`` rows, unique in a run.

    Args:
        label: the training step, or a word for what is no training.
        start: the place of the first prompt among all of `label`.
    """
    places = range(start, start + prompts)
    return (
        [f"{label}-{place}-{j}" for place in places for j in range(n)],
        [f"{label}-{place}" for place in places for _ in range(n)],
    )


class Layout:
    """The rows of a step, of which all but the responses is known before a token is sampled.

    Args:
        rows: the P prompts.
        n: responses a prompt.
        names: sample ids and group ids, of `row_names`.
        tokenizer: decodes responses, each once.
    """

    def __init__(
        self,
        rows: Sequence[PromptRow],
        n: int,
        names: tuple[list[str], list[str]],
        tokenizer: Any,
    ) -> None:
        repeated = [row for row in rows for _ in range(n)]
        columns = dict.fromkeys(name for row in rows for name in row.columns)
        self._tokenizer, self._n = tokenizer, n
        self._decoder = ResponseDecoder(tokenizer)
        self._opened = [row.opened for row in repeated]
        self._data = {name: [row.columns.get(name) for row in repeated] for name in columns}
        sample_ids, group_ids = names
        self._columns: dict[str, list[Any]] = {
            "sample_ids": sample_ids,
            "group_ids": group_ids,
            "prompts": [row.prompt for row in repeated],
            "prompt_ids": [row.ids for row in repeated],
            **{name: [None] * len(repeated) for name in RESPONSE_COLUMNS},
        }

    def take(
        self, rows: Sequence[int], response_ids: Sequence[Any], finish_reason: Sequence[str]
    ) -> None:
        """The responses to these rows."""
        texts, raw = self._decoder.both(response_ids)
        raw = [self._opened[row] + text for row, text in zip(rows, raw, strict=True)]
        for name, values in zip(
            RESPONSE_COLUMNS, (response_ids, finish_reason, texts, raw), strict=True
        ):
            column = self._columns[name]
            for row, value in zip(rows, values, strict=True):
                column[row] = value

    def reward_columns(self, rows: Sequence[int]) -> dict[str, Any]:
        """What rewards read, of these rows alone; their responses are there."""
        picked = {name: [column[i] for i in rows] for name, column in self._columns.items()}
        data = {name: [column[i] for i in rows] for name, column in self._data.items()}
        return picked | {"columns": data}

    def columns(self) -> dict[str, Any]:
        """`ROLLOUT_COLUMNS`, when the last response is there."""
        pad = int(self._tokenizer.pad_token_id)
        prompts, prompts_mask = _pad(self._columns["prompt_ids"], pad, left=True)
        generated, response_mask = _pad(self._columns["response_ids"], pad, left=False)
        groups = len(self._columns["prompts"]) // self._n
        return {
            **self._columns,
            "columns": self._data,
            "group_index": torch.arange(groups).repeat_interleave(self._n),
            "input_ids": torch.cat([prompts, generated], dim=1),
            "attention_mask": torch.cat([prompts_mask, response_mask], dim=1),
            "generated_ids": generated,
            "response_mask": response_mask,
        }


def lay_out(
    rows: Sequence[PromptRow],
    n: int,
    response_ids: Sequence[Any],
    finish_reason: Sequence[str],
    names: tuple[list[str], list[str]],
    tokenizer: Any,
) -> dict[str, Any]:
    """`ROLLOUT_COLUMNS` of ``len(rows) * n`` responses."""
    layout = Layout(rows, n, names, tokenizer)
    layout.take(range(len(response_ids)), response_ids, finish_reason)
    return layout.columns()


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
