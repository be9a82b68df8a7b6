"""The seed document's seam: a `RewardNode` turns a step's tensors into rewards.

`NodeProvider` lets such a node run as any other mount, `ProviderNode` places mounts in the
dataflow. The trainer speaks to rewards only through `RewardEngine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verl_core.dataflow import Node, StepBatch
from verl_reward_sdk import (
    ConfigError,
    ContractError,
    ProviderConfig,
    RewardBatch,
    RewardProvider,
    RewardResult,
)

#: What a node finds in its batch, data-set columns aside: see `RewardNode.compute_reward`.
TENSOR_COLUMNS = (
    "input_ids",
    "attention_mask",
    "generated_ids",
    "response_mask",
    "old_log_probs",
    "ref_log_prob",
)


_PROBE_ROWS = 4
_KL_PENALTY = "_compute_kl_penalty"
DOUBLE_KL = (
    "subtracts a KL penalty itself, and algorithm.kl_in is reward: the KL would be paid twice"
)
DOUBLE_KL_HINT = "set algorithm.kl_coef: 0, or algorithm.allow_double_kl: true"


class RewardNode:
    """Computes one reward a row from a step's tensors. Subclass it and name the class in a config:

    .. code-block:: yaml

        reward: {type: custom, node_class: safety_reward.SafetyRewardNode}

    ``init_kwargs`` go to the constructor. It runs with the config's folder as working directory,
    so a file beside the config is opened by its name alone.
    """

    def compute_reward(self, batch: dict[str, Any]) -> Tensor:
        """Rewards of B rows, a float tensor (B,).

        Args:
            batch: ``input_ids``, ``attention_mask`` (B, P+R) int64, prompts padded on the left;
                ``generated_ids``, ``response_mask`` (B, R) int64, padded on the right;
                ``old_log_probs``, ``ref_log_prob`` (B, R) float32, 0 outside the mask;
                ``responses``, B texts; and each data-set column, B values.
        """
        raise TypeError(f"{type(self).__name__} does not define compute_reward(batch)")

    def _compute_kl_penalty(self, batch: Mapping[str, Any]) -> Tensor:
        """(B,) the k1 estimate of KL(policy || reference), summed over each response's tokens."""
        log_ratio: Tensor = batch["old_log_probs"] - batch["ref_log_prob"]
        penalty: Tensor = (log_ratio * batch["response_mask"]).sum(dim=-1)
        return penalty


def uses_kl_penalty(node_class: type[RewardNode]) -> bool:
    """Whether any method of the class names `_compute_kl_penalty`, however it is wrapped. What
    calls it from elsewhere is found out by `refuse_kl_penalty`, when it does."""
    for owner in node_class.__mro__:
        if owner is RewardNode:
            return False
        if any(_names_kl_penalty(code) for m in vars(owner).values() for code in _codes(m)):
            return True
    return False


def _codes(member: Any, depth: int = 0) -> Iterator[CodeType]:
    """The code of a method, and of what it wraps: decorators, properties, partials, closures."""
    if depth > 8:
        return
    if isinstance(member, CodeType):
        yield member
        parts: list[Any] = [const for const in member.co_consts if isinstance(const, CodeType)]
    else:
        names = ("__code__", "__func__", "__wrapped__", "fget", "func")
        parts = [getattr(member, name, None) for name in names]
        for cell in getattr(member, "__closure__", None) or ():
            with suppress(ValueError):  # an empty cell
                parts.append(cell.cell_contents)
    for part in parts:
        if part is not None and not isinstance(part, type):
            yield from _codes(part, depth + 1)


def _names_kl_penalty(code: CodeType) -> bool:
    return _KL_PENALTY in code.co_names or _KL_PENALTY in code.co_consts


def refuse_kl_penalty(node: RewardNode) -> None:
    """Have `node` raise `ConfigError` where it computes a KL penalty after all."""

    def refuse(_: Any) -> Tensor:
        raise ConfigError(f"{type(node).__name__} {DOUBLE_KL}", hint=DOUBLE_KL_HINT)

    vars(node)["_compute_kl_penalty"] = refuse


class TensorShelf:
    """Where the trainer lays a step's tensors for the nodes among the mounts.

    A `RewardBatch` carries texts and token ids; a `RewardNode` wants log-probabilities too. They
    are found again by sample id, so that any slice or order of rows gets its own.
    """

    def __init__(self) -> None:
        self._columns: Mapping[str, Any] = {}
        self._row_of: dict[str, int] = {}
        self._kept: dict[object, tuple[RewardBatch, dict[str, Tensor]]] = {}

    def keep(self, owner: object, rows: RewardBatch) -> None:
        """Have `rows`, which lie here, also after the next `lay`, until `owner` keeps others: a new
        generation of a node is tried on them."""
        self._kept[owner] = (rows, self.take(rows.sample_ids))

    def kept(self, owner: object) -> RewardBatch | None:
        """The rows that `owner` kept last."""
        rows, _ = self._kept.get(owner, (None, {}))
        return rows

    def lay(self, sample_ids: Sequence[str], columns: Mapping[str, Tensor]) -> None:
        """Replace what lies there by `columns`, (B, …) tensors in the order of `sample_ids`."""
        self._row_of = {sample_id: row for row, sample_id in enumerate(sample_ids)}
        self._columns = dict(columns)

    def lay_batch(self, batch: StepBatch) -> None:
        """`lay` with those of `TENSOR_COLUMNS` that the step has."""
        columns = {name: batch[name] for name in TENSOR_COLUMNS if name in batch}
        self.lay(batch["sample_ids"], columns)

    def __contains__(self, sample_id: str) -> bool:
        return sample_id in self._row_of

    def take(self, sample_ids: Sequence[str]) -> dict[str, Tensor]:
        """The rows of `sample_ids`, as copies that a node may change."""
        for kept, tensors in tuple(self._kept.values()):
            if list(kept.sample_ids) == list(sample_ids) and sample_ids[0] not in self._row_of:
                return {name: column.clone() for name, column in tensors.items()}
        missing = [sample_id for sample_id in sample_ids if sample_id not in self._row_of]
        if missing:
            raise ContractError(
                "a RewardNode needs the tensors of a rollout, and these rows have none",
                provider="RewardNode",
                value=missing[0],
                bound="rows of the step that is being trained or evaluated",
            )
        rows = torch.tensor([self._row_of[sample_id] for sample_id in sample_ids])
        return {name: column.index_select(0, rows) for name, column in self._columns.items()}


class NodeProvider(RewardProvider[ProviderConfig]):
    """A `RewardNode` at work as a mount."""

    name = "custom"

    def __init__(
        self,
        node: RewardNode,
        shelf: TensorShelf,
        columns: Sequence[str] = (),
        assets: Sequence[Path] = (),
        *,
        stamps: Mapping[str, Any] | None = None,
        owner: object = None,
    ) -> None:
        super().__init__(ProviderConfig())
        self._node = node
        self._shelf = shelf
        self._reads = frozenset(columns)
        self._assets = tuple(assets)
        self._owner = owner
        #: How its files were when it opened them: path -> stamp.
        self.stamps = stamps or {}

    @property
    def node(self) -> RewardNode:
        """Who scores."""
        return self._node

    def assets(self) -> tuple[Path, ...]:
        return self._assets

    def probe(self) -> RewardBatch | None:
        return self._shelf.kept(self._owner)

    @property
    def reads(self) -> frozenset[str]:
        return self._reads

    def score(self, batch: RewardBatch) -> RewardResult:
        tensors: dict[str, Any] = dict(self._shelf.take(batch.sample_ids))
        if self._assets and len(batch) and batch.sample_ids[0] in self._shelf:
            self._shelf.keep(self._owner, batch.take(range(min(_PROBE_ROWS, len(batch)))))
        tensors["responses"] = list(batch.responses)
        tensors.update({name: list(values) for name, values in batch.columns.items()})
        with torch.no_grad():
            rewards = self._node.compute_reward(tensors)
        if not isinstance(rewards, Tensor):
            raise ContractError(
                "compute_reward did not return a tensor",
                provider=type(self._node).__name__,
                value=type(rewards).__name__,
                bound=f"a float tensor of shape ({len(batch)},)",
            )
        if rewards.is_complex():  # float64 would drop what is imaginary
            raise ContractError(
                "compute_reward returned complex numbers",
                provider=type(self._node).__name__,
                row=0 if rewards.numel() else None,
                value=rewards.flatten()[0].item() if rewards.numel() else str(rewards.dtype),
                bound=f"a float tensor of shape ({len(batch)},)",
            )
        return RewardResult(
            scores=rewards.detach().to("cpu", torch.float64).numpy().astype(np.float64)
        )


def reward_batch(batch: StepBatch, *, training: bool) -> RewardBatch:
    """A step's responses as the reward engine takes them."""
    return RewardBatch(
        sample_ids=batch["sample_ids"],
        prompts=batch["prompts"],
        responses=batch["responses"],
        responses_raw=batch["responses_raw"],
        finish_reason=batch["finish_reason"],
        columns=batch["columns"],
        group_ids=batch["group_ids"],
        response_ids=batch["response_ids"],
        response_mask=[np.ones(len(ids), dtype=np.int64) for ids in batch["response_ids"]],
        policy_version=batch.step - 1 if training else batch.step,
        step=batch.step,
        training=training,
    )


class ProviderNode(Node):
    """Scores the mounts of one dataflow stage, all at once, and leaves the results in the step's
    `Scoring`; `verl_core.trainer.nodes.fuse` makes one reward of them."""

    def __init__(self, mounts: Sequence[str], *, reads_tensors: bool = False) -> None:
        self.mounts = tuple(mounts)
        tensors = set(TENSOR_COLUMNS) if reads_tensors else set()
        self.reads = frozenset({"responses", "scoring"} | tensors)  # type: ignore[misc]
        self.name = "+".join(mounts)
        self.writes = frozenset(f"reward/{mount}" for mount in mounts)  # type: ignore[misc]

    def run(self, batch: StepBatch) -> Mapping[str, Any]:
        batch["scoring"].run(self.mounts)
        return {f"reward/{mount}": True for mount in self.mounts}
