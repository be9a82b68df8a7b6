"""The advantage stage: what a response was worth beside what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from verl_core.dataflow import Node, StepBatch
from verl_core.trainer.advantage.gae import gae, whiten
from verl_core.trainer.advantage.gdpo import gdpo_advantages
from verl_core.trainer.advantage.grpo import group_advantages
from verl_core.trainer.model_set import ModelSet


class GRPONode(Node):
    """Group-relative advantages, the same for every token of a response.

    Writes:
        advantages: (B, R) float64, 0 outside `loss_mask`.
    """

    name = "grpo"
    reads: ClassVar[frozenset[str]] = frozenset(
        {"token_level_rewards", "loss_mask", "live", "in_baseline", "group_index"}
    )
    writes: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def __init__(self, *, norm_by_std: bool) -> None:
        self.norm_by_std = norm_by_std

    def run(self, batch: StepBatch) -> Mapping[str, Any]:
        result = group_advantages(
            batch["token_level_rewards"].sum(dim=1),
            batch["group_index"],
            batch["live"],
            batch["in_baseline"],
            norm_by_std=self.norm_by_std,
        )
        batch.metrics["reward/groups_dropped"] = float(result.dropped)
        batch.metrics["reward/groups_flat"] = float(result.flat)
        return {"advantages": result.values[:, None] * batch["loss_mask"]}


class GDPONode(Node):
    """Group-relative advantages from every mount by itself, the same for every token of a response.

    It reads the table's columns, not the fused reward: the scores as the fusion took them, the
    weights of the step's lease, and a column a gate.

    Writes:
        advantages: (B, R) float64, 0 outside `loss_mask`.
    """

    name = "gdpo"
    reads: ClassVar[frozenset[str]] = frozenset(
        {"table", "loss_mask", "live", "in_baseline", "group_index"}
    )
    writes: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def run(self, batch: StepBatch) -> Mapping[str, Any]:
        columns = batch["table"].columns.values()
        rewards = [column for column in columns if column.role == "reward"]
        gates = [column for column in columns if column.role == "gate"]
        penalties = [
            torch.from_numpy(gate.words > 0).double() * batch["table"].penalties[gate.name]
            for gate in gates
        ]
        result = gdpo_advantages(
            _stacked([torch.from_numpy(column.normalised.copy()) for column in rewards]),
            torch.tensor([column.weight for column in rewards], dtype=torch.float64),
            batch["group_index"],
            batch["live"],
            batch["in_baseline"],
            neutral=_stacked([torch.from_numpy(column.neutral.copy()) for column in rewards]),
            penalties=_stacked(penalties) if gates else None,
            unsure=_stacked([torch.from_numpy(column.unsure.copy()) for column in rewards]),
        )
        batch.metrics["reward/groups_dropped"] = float(result.dropped)
        batch.metrics["reward/groups_flat"] = float(result.flat)
        return {"advantages": result.values[:, None] * batch["loss_mask"]}


def _stacked(columns: Sequence[Tensor]) -> Tensor:
    """(B, M) of M columns (B,)."""
    return torch.stack(list(columns), dim=1)


class GAENode(Node):
    """Advantages along the tokens, against a critic's values.

    Writes:
        values: (B, R) float32, the critic's values before this step's update.
        advantages: (B, R) float64, whitened over the tokens in `loss_mask`.
        returns: (B, R) float64.
    """

    name = "gae"
    reads: ClassVar[frozenset[str]] = frozenset(
        {"token_level_rewards", "loss_mask"}
        | {"prompt_ids", "response_ids", "response_mask", "group_index"}
    )
    writes: ClassVar[frozenset[str]] = frozenset({"values", "advantages", "returns"})

    def __init__(self, models: ModelSet, *, gamma: float, lam: float) -> None:
        self.models, self.gamma, self.lam = models, gamma, lam

    def run(self, batch: StepBatch) -> Mapping[str, Any]:
        mask: Tensor = batch["loss_mask"]
        values = self.models.values(batch.columns)
        advantages, returns = gae(
            batch["token_level_rewards"], values, mask, gamma=self.gamma, lam=self.lam
        )
        tokens = mask.sum().clamp(min=1)
        batch.metrics["critic/values/mean"] = float((values * mask).sum() / tokens)
        batch.metrics["critic/returns/mean"] = float((returns * mask).sum() / tokens)
        batch.metrics["critic/explained_variance"] = _explained(values, returns, mask)
        return {
            "values": values,
            "advantages": whiten(advantages, mask),
            "returns": returns,
        }


def _explained(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns) over `mask`; 0 where the returns do not vary."""
    on = mask.bool()
    target = returns[on]
    if target.numel() < 2 or float(target.var()) < 1e-12:
        return 0.0
    return float(1 - torch.var(target - values[on].double()) / target.var())
