"""A batch of rollouts as a provider sees it: frozen and columnar."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from verl_reward_sdk.errors import ContractError
from verl_reward_sdk.rows import Rows, frozen, joined, picked, uncopied
from verl_reward_sdk.turns import (
    Message,
    Prompt,
    as_messages,
    as_text,
    last_turn,
    split_thinking,
    without_thinking,
)

FINISH_REASONS = ("stop", "length", "abort", "tool_error")
_FINISHED = frozenset(FINISH_REASONS)
T = TypeVar("T")

_ROW_FIELDS = (
    "sample_ids",
    "prompts",
    "responses",
    "responses_raw",
    "finish_reason",
    "trajectories",
    "group_ids",
    "response_ids",
    "response_mask",
)


@dataclass(frozen=True, eq=False)
class RewardBatch:
    """B rows, one a rollout. Nothing in it can be changed.

    Where a row's value is a list, a dict or a set (chat messages, a nested column), reading it
    gives a copy: keep it in a variable rather than reading it again and again. Values of other
    mutable types are handed over as they are; a provider leaves them alone.

    Args:
        sample_ids: B strings, unique in a run.
        prompts: B prompts as the data set gave them: text, or a list of chat messages.
        responses: B texts: the final assistant turn, decoded, special tokens removed.
        responses_raw: B texts with special tokens and a prefilled ``<think>`` kept, padding cut;
            by default `responses`.
        finish_reason: B of ``stop | length | abort | tool_error``; by default ``stop``.
        trajectories: B whole exchanges of multi-turn or tool-using rollouts, or None.
        columns: data-set columns, each of length B.
        group_ids: B hashables: responses to one prompt share one. None: each row is a group.
        response_ids: B arrays (T_i,) int64 of token ids, or None.
        response_mask: B arrays (T_i,), 1 where the policy sampled the token, or None.
        policy_version: which policy sampled the rows.
        step: the training step they belong to, or None.
        training: False in evaluation and serving.

    Raises:
        ContractError: a field whose length is not B, or sample ids that repeat.
    """

    sample_ids: Sequence[str]
    prompts: Sequence[Prompt]
    responses: Sequence[str]
    responses_raw: Sequence[str] = ()
    finish_reason: Sequence[str] = ()
    trajectories: Sequence[Sequence[Message]] | None = None
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    group_ids: Sequence[Hashable] | None = None
    response_ids: Sequence[npt.NDArray[np.int64]] | None = None
    response_mask: Sequence[npt.NDArray[np.int64]] | None = None
    policy_version: int = 0
    step: int | None = None
    training: bool = False

    def __post_init__(self) -> None:
        n = len(self.sample_ids)
        if not self.responses_raw:
            object.__setattr__(self, "responses_raw", self.responses)
        if not self.finish_reason:
            object.__setattr__(self, "finish_reason", ("stop",) * n)
        for name in _ROW_FIELDS:
            value = getattr(self, name)
            if value is None:
                continue
            _check_length(name, value, n)
            object.__setattr__(self, name, frozen(value))
        _check_finish_reason(self.finish_reason)
        for name, column in self.columns.items():
            _check_length(f"columns[{name!r}]", column, n)
        columns = {name: frozen(column) for name, column in self.columns.items()}
        object.__setattr__(self, "columns", MappingProxyType(columns))
        _check_unique(self.sample_ids)
        _check_groups(self.group_ids or ())

    def __reduce__(self) -> tuple[Any, ...]:
        state = {f.name: getattr(self, f.name) for f in fields(self)}
        state["columns"] = dict(self.columns)
        return _restore, (state,)

    # -- views, computed once ------------------------------------------------------------

    @property
    def prompt_text(self) -> tuple[str, ...]:
        """B texts: the prompt itself, or the contents of its messages joined by newlines."""
        return self._view("prompt_text", lambda: map(as_text, uncopied(self.prompts)))

    @property
    def prompt_messages(self) -> Sequence[Sequence[Message]]:
        """B lists of messages: a plain text is one user message. Reading a row gives a copy."""
        return Rows(self._view("prompt_messages", lambda: map(as_messages, uncopied(self.prompts))))

    @property
    def thinking(self) -> tuple[str, ...]:
        """B texts: what stands before ``</think>`` (empty where there is none)."""
        return self._view("thinking", lambda: (split_thinking(r)[0] for r in self.responses_raw))

    @property
    def answer(self) -> tuple[str, ...]:
        """B texts: the response without its thinking.

        A ``<think>`` that is never closed leaves an empty answer: the model was cut off before it
        answered.
        """
        return self._view(
            "answer", lambda: map(without_thinking, self.responses, self.responses_raw)
        )

    def _view(self, name: str, rows: Callable[[], Iterable[T]]) -> tuple[T, ...]:
        """What `rows` gives, computed once for this batch and all that share its rows."""
        if name not in self._views:
            self._views[name] = tuple(rows())
        return cast("tuple[T, ...]", self._views[name])

    @property
    def _views(self) -> dict[str, tuple[Any, ...]]:
        """View -> its rows, of the views that were asked for."""
        views: dict[str, tuple[Any, ...]] = self.__dict__.setdefault("_computed", {})
        return views

    # -- rows --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __getitem__(self, rows: slice) -> RewardBatch:
        return self.take(range(*rows.indices(len(self))))

    def take(self, rows: Iterable[int]) -> RewardBatch:
        """The given rows, in the given order."""
        index = list(rows)
        kept: dict[str, Any] = {
            name: None if value is None else picked(value, index)
            for name in _ROW_FIELDS
            for value in (getattr(self, name),)
        }
        _check_unique(kept["sample_ids"])
        columns = {name: picked(column, index) for name, column in self.columns.items()}
        views = {name: tuple(picked(v, index)) for name, v in self._views.items()}
        return self._with(kept, columns, views)

    def with_columns_only(self, names: Iterable[str]) -> RewardBatch:
        """The same rows with only those data-set columns; views are computed once for both."""
        keep = frozenset(names)
        columns = {name: column for name, column in self.columns.items() if name in keep}
        return self._with({}, columns, self._views)

    def _with(
        self,
        state: Mapping[str, Any],
        columns: Mapping[str, Sequence[Any]],
        views: dict[str, tuple[Any, ...]],
    ) -> RewardBatch:
        """Another batch of frozen rows that have passed every check: none is made again."""
        other = object.__new__(type(self))
        mine = {"columns": MappingProxyType(columns), "_computed": views}
        other.__dict__.update({**self.__dict__, **state, **mine})
        return other

    @classmethod
    def concat(cls, batches: Sequence[RewardBatch]) -> RewardBatch:
        """One batch of all rows, in order.

        Columns, and optional fields, must stand in all of them or in none.
        """
        if not batches:
            return cls(sample_ids=(), prompts=(), responses=())
        first = batches[0]
        names = set(first.columns)
        merged: dict[str, Any] = {}
        for batch in batches[1:]:
            if set(batch.columns) != names:
                odd = sorted(set(batch.columns) ^ names)
                raise ContractError(
                    "batches with different columns cannot be joined", provider="batch", value=odd
                )
        for name in _ROW_FIELDS:
            values = [getattr(batch, name) for batch in batches]
            missing = [value is None for value in values]
            if any(missing) and not all(missing):
                raise ContractError(
                    f"{name} stands in some batches only", provider="batch", value=name
                )
            merged[name] = None if all(missing) else joined(values)
        _check_unique(merged["sample_ids"])
        columns = {name: joined([b.columns[name] for b in batches]) for name in first.columns}
        return first._with(merged, columns, {})

    # -- records and other trainers' shapes ----------------------------------------------

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]], **common: Any) -> RewardBatch:
        """Rows as mappings: the fields by their singular names, everything else a column.

        Known keys: ``sample_id, prompt, response, response_raw, finish_reason, trajectory,
        group_id, response_ids, response_mask``. `common` sets ``step``, ``training`` and so on.
        """
        rows = list(records)
        known = set(_RECORD_KEYS)
        columns = list(dict.fromkeys(key for row in rows for key in row if key not in known))
        state: dict[str, Any] = {
            "sample_ids": [str(row.get("sample_id", i)) for i, row in enumerate(rows)],
            "prompts": [row.get("prompt", "") for row in rows],
            "responses": [_required(row, "response", i) for i, row in enumerate(rows)],
            "columns": {name: [row.get(name) for row in rows] for name in columns},
        }
        for key, name in _RECORD_KEYS.items():
            if name not in state and any(key in row for row in rows):
                state[name] = [_required(row, key, i) for i, row in enumerate(rows)]
        return cls(**state, **common)

    def to_records(self) -> list[dict[str, Any]]:
        """The inverse of `from_records`."""
        names = [
            (key, name) for key, name in _RECORD_KEYS.items() if getattr(self, name) is not None
        ]
        return [
            {key: getattr(self, name)[i] for key, name in names}
            | {name: column[i] for name, column in self.columns.items()}
            for i in range(len(self))
        ]

    @classmethod
    def from_trl(
        cls,
        prompts: Sequence[Prompt],
        completions: Sequence[Prompt],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> RewardBatch:
        """TRL's reward function arguments; a conversational completion gives its last turn.

        Keyword arguments that are no sequence of length B (``trainer_state``, ``log_metric``) are
        left out.
        """
        n = len(completions)
        kept = {
            name: value
            for name, value in columns.items()
            if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == n
        }
        ids = None
        if completion_ids is not None:
            ids = [np.asarray(row, dtype=np.int64) for row in completion_ids]
        return cls(
            sample_ids=[str(i) for i in range(n)],
            prompts=prompts,
            responses=[last_turn(completion) for completion in completions],
            response_ids=ids,
            columns=kept,
            training=True,
        )

    @classmethod
    def from_openrlhf(
        cls, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] | None = None
    ) -> RewardBatch:
        """OpenRLHF's reward function arguments: a query is the prompt followed by the response.

        Raises:
            ContractError: a query does not begin with its prompt (OpenRLHF decodes the prompt's
                tokens, which may change the text); nobody knows where its response begins.
        """
        _check_length("prompts", prompts, len(queries))
        responses = []
        for row, (query, prompt) in enumerate(zip(queries, prompts, strict=True)):
            if not query.startswith(prompt):
                raise ContractError(
                    "a query does not begin with its prompt",
                    provider="batch",
                    row=row,
                    value=query[:60],
                    bound=prompt[:60],
                )
            responses.append(query[len(prompt) :])
        columns = {} if labels is None else {"ground_truth": labels}
        return cls(
            sample_ids=[str(i) for i in range(len(queries))],
            prompts=prompts,
            responses=responses,
            columns=columns,
            training=True,
        )

    @classmethod
    def from_verl(
        cls, responses: Sequence[str], non_tensor_batch: Mapping[str, Sequence[Any]], **common: Any
    ) -> RewardBatch:
        """verl's ``DataProto.non_tensor_batch`` beside the decoded responses.

        ``raw_prompt`` are the prompts, ``uid`` the groups, ``reward_model["ground_truth"]`` the
        column ``ground_truth``; every other array is a column under its own name.
        """
        n = len(responses)
        columns = {
            name: list(values)
            for name, values in non_tensor_batch.items()
            if name not in ("raw_prompt", "uid", "reward_model")
        }
        models = non_tensor_batch.get("reward_model")
        if models is not None:
            columns["ground_truth"] = [model.get("ground_truth") for model in models]
        groups = non_tensor_batch.get("uid")
        return cls(
            sample_ids=[str(i) for i in range(n)],
            prompts=list(non_tensor_batch.get("raw_prompt", [""] * n)),
            responses=responses,
            columns=columns,
            group_ids=None if groups is None else list(groups),
            training=common.pop("training", True),
            **common,
        )


_RECORD_KEYS = {
    "sample_id": "sample_ids",
    "prompt": "prompts",
    "response": "responses",
    "response_raw": "responses_raw",
    "finish_reason": "finish_reason",
    "trajectory": "trajectories",
    "group_id": "group_ids",
    "response_ids": "response_ids",
    "response_mask": "response_mask",
}


def _restore(state: dict[str, Any]) -> RewardBatch:
    return RewardBatch(**state)


def _required(row: Mapping[str, Any], key: str, index: int) -> Any:
    if key not in row:
        raise ContractError(
            f"a record has no {key!r}", provider="batch", row=index, value=list(row)
        )
    return row[key]


def _check_finish_reason(reasons: Sequence[Any]) -> None:
    for row, reason in enumerate(reasons) if not _FINISHED.issuperset(reasons) else ():
        if reason not in _FINISHED:
            raise ContractError(
                "a finish_reason is none that is known",
                provider="batch",
                row=row,
                value=reason,
                bound="one of " + ", ".join(FINISH_REASONS),
            )


def _check_groups(ids: Sequence[Any]) -> None:
    for row, group in enumerate(ids):
        try:
            hash(group)
        except TypeError as error:
            raise ContractError(
                "a group id is a value that can be changed",
                provider="batch",
                row=row,
                value=str(group)[:60],
                bound="a text, a number or a tuple",
            ) from error


def _check_unique(ids: Sequence[str]) -> None:
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        twice = next(one for one in ids if one in seen or seen.add(one))  # type: ignore[func-returns-value]
        raise ContractError(
            "a sample id stands twice", provider="batch", value=twice, bound="unique ids"
        )


def _check_length(name: str, value: Any, n: int) -> None:
    if isinstance(value, str):
        raise ContractError(
            f"{name} is one text", provider="batch", value=value[:60], bound=f"{n} of them, a list"
        )
    if len(value) != n:
        raise ContractError(
            f"{name} has a wrong length", provider="batch", value=len(value), bound=f"{n} rows"
        )
