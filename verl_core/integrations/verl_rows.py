"""From verl's `DataProto` to rows, and from rows to a `RewardBatch`.

Where verl puts things (0.7.1 to 0.9.1):

- ``batch["responses"]`` (n, R) int64, padded on the right. verl >= 0.8 hands over all outputs of a
  trajectory, of which the last is the answer, with their true lengths in ``response_len``. There
  ``attention_mask`` (n, P + R) is packed to the left, so that its last R columns do not belong to
  the response; without ``response_len`` they do.
- ``non_tensor_batch``: an array of length n a column of the data set, besides ``raw_prompt`` (the
  messages), ``uid`` (one a prompt group), ``reward_model`` (with ``ground_truth``), ``extra_info``,
  ``data_source``, and, from the V1 trainer, ``global_steps``.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verl_core.rewards.decoding import ResponseDecoder
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, did_you_mean
from verl_reward_sdk.turns import Prompt

#: Dicts beside the columns in which a column that a mount reads may lie.
_NESTED = ("extra_info", "reward_model", "tool_extra_fields")
#: Columns that verl keeps under another name.
_RENAMED = {"num_turns": "__num_turns__"}


@dataclass(frozen=True)
class Row:
    """One response on its way to the engine.

    Args:
        ids: its tokens, padding cut.
        prompt: text or messages, or None, in which case `prompt_ids` are to be decoded.
        prompt_ids: tokens of the prompt, padding cut.
        columns: the data-set columns that the mounts read.
        step: verl's ``global_steps``, or None.
        group: verl's ``uid``, or None.
        finish_reason: ``stop`` or ``length``.
    """

    ids: list[int]
    prompt: Prompt | None
    prompt_ids: list[int]
    columns: Mapping[str, Any]
    step: int | None
    group: Hashable | None
    finish_reason: str


class RowReader:
    """Reads rows and makes batches of them.

    Args:
        tokenizer: of the policy.
        reads: the columns that the mounts need.
        limit: the longest response in tokens, or None where it is not known.
    """

    def __init__(self, tokenizer: Any, reads: Collection[str], limit: int | None) -> None:
        self._decoder = ResponseDecoder(tokenizer)
        self._reads = sorted(reads)
        self._limit = limit
        self._ends = frozenset(tokenizer.all_special_ids)
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count()

    def read(self, data: Any) -> Row:
        """The last row of a `DataProto`.

        Raises:
            ConfigError: it lacks a column that a mount reads.
        """
        extra = {name: values[-1] for name, values in data.non_tensor_batch.items()}
        tensors = data.batch
        responses = tensors["responses"]
        width = responses.shape[-1]
        if "response_len" in extra:
            length = int(extra["response_len"])
        else:
            length = int(tensors["attention_mask"][-1, -width:].sum())
        ids: list[int] = responses[-1, :length].tolist()
        prompt = plain(extra.get("raw_prompt"))
        step = extra.get("global_steps")
        cut = self._limit is not None and length >= self._limit and ids[-1] not in self._ends
        return Row(
            ids=ids,
            prompt=prompt,
            prompt_ids=[] if prompt is not None else _prompt_ids(tensors, extra),
            columns={name: self._column(name, extra) for name in self._reads},
            step=None if step is None or int(step) < 0 else int(step),
            group=plain(extra.get("uid")),
            finish_reason="length" if cut else "stop",
        )

    def batch(self, rows: Sequence[Row], step: int | None) -> RewardBatch:
        """Decode rows into a batch. Nothing here waits, but long texts take their time."""
        ids = [row.ids for row in rows]
        responses, raw = self._decoder.both(ids)
        groups = [row.group for row in rows]
        return RewardBatch(
            sample_ids=[self._sample_id(row) for row in rows],
            prompts=self._prompts(rows),
            responses=responses,
            responses_raw=raw,
            finish_reason=[row.finish_reason for row in rows],
            columns={name: [row.columns[name] for row in rows] for name in self._reads},
            group_ids=None if None in groups else groups,
            response_ids=[np.asarray(row, dtype=np.int64) for row in ids],
            policy_version=step or 0,
            step=step,
            training=True,  # verl does not say; a row of validation looks the same
        )

    def _prompts(self, rows: Sequence[Row]) -> list[Prompt]:
        bare = [row.prompt_ids for row in rows if row.prompt is None]
        texts = iter(self._decoder.texts(bare))
        return [next(texts) if row.prompt is None else row.prompt for row in rows]

    def _sample_id(self, row: Row) -> str:
        """Unique in a run: verl's padding repeats rows, and each worker counts for itself."""
        number = f"{self._prefix}-{next(self._count)}"
        return number if row.group is None else f"{row.group}-{number}"

    def _column(self, name: str, extra: Mapping[str, Any]) -> Any:
        """A column by its own name, or inside ``extra_info``, ``reward_model`` and so on."""
        for key in (name, _RENAMED.get(name, name)):
            if key in extra:
                return plain(extra[key])
        nested = [extra[key] for key in _NESTED if isinstance(extra.get(key), Mapping)]
        for values in nested:
            if name in values:
                return plain(values[name])
        known = [*extra, *(key for values in nested for key in values)]
        raise ConfigError(
            f"verl's row has no column {name!r}, which the rewards read",
            path="reward",
            hint=did_you_mean(name, known),
        )


def plain(value: Any) -> Any:
    """Python's own value in place of numpy's; verl makes arrays of everything."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def _prompt_ids(tensors: Any, extra: Mapping[str, Any]) -> list[int]:
    """The prompt's tokens: padded on the right beside ``prompt_len``, else on the left."""
    prompts = tensors["prompts"]
    if "prompt_len" in extra:
        ids: list[int] = prompts[-1, : int(extra["prompt_len"])].tolist()
    else:
        kept = tensors["attention_mask"][-1, : prompts.shape[-1]].bool()
        ids = prompts[-1][kept].tolist()
    return ids
