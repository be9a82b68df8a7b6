"""From scored mounts to one reward a row, and from there to the tokens of its response.

The trainer puts this node behind the last stage that holds mounts. Order, as the contract has it:
fusion and gates (in `Scoring.finish`), placement on the tokens, KL in reward per token, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from verl_core.dataflow import Node, StepBatch
from verl_core.rewards.decoding import ResponseDecoder
from verl_core.rewards.table import RewardTable
from verl_core.rewards.tokens import place
from verl_core.trainer.kl import kl_estimate
from verl_core.trainer.model_set import ModelSet


class FuseNode(Node):
    """Finishes the step's scoring.

    Writes:
        table: the `RewardTable`.
        live: (B,) bool, False where a row is masked.
        in_baseline: (B,) bool, rows that may enter their group's mean.
        loss_mask: (B, R) int64, `response_mask` with masked rows all zero: critic, token counts.
        actor_mask: (B, R) int64, `loss_mask` with skipped rows all zero too: every actor loss term.
        token_level_rewards: (B, R) float64, 0 for masked rows.

    Args:
        models: whose tokenizer finds the tokens of token scores that are given as spans of text.
        kl_coef: weight of the KL penalty in the reward, 0 for none.
        estimator: ``k1``, ``k2`` or ``k3``.
    """

    name = "fuse"
    writes: ClassVar[frozenset[str]] = frozenset(
        {"table", "live", "in_baseline", "loss_mask", "actor_mask", "token_level_rewards"}
    )

    def __init__(
        self,
        mounts: list[str],
        models: ModelSet,
        *,
        kl_coef: float = 0.0,
        estimator: str = "k1",
    ) -> None:
        self.models, self.kl_coef, self.estimator = models, kl_coef, estimator
        reads = {"scoring", "response_mask", *(f"reward/{mount}" for mount in mounts)}
        reads |= {"response_ids", "responses"}
        if kl_coef:
            reads |= {"old_log_probs", "ref_log_prob"}
        self.reads = frozenset(reads)  # type: ignore[misc]

    def run(self, batch: StepBatch) -> Mapping[str, Any]:
        table = batch["scoring"].finish()
        response_mask: Tensor = batch["response_mask"]
        live = torch.from_numpy(~table.masked)
        loss_mask = response_mask * live[:, None]
        actor_mask = loss_mask * torch.from_numpy(~table.skip)[:, None]
        if table.token_parts:
            rewards = self._placed(table, batch)
        else:
            fused = torch.nan_to_num(torch.from_numpy(table.fused.copy()), nan=0.0)
            rewards = place_on_last_token(fused, loss_mask)
        if self.kl_coef:
            kl = kl_estimate(batch["old_log_probs"], batch["ref_log_prob"], self.estimator)
            rewards = rewards - self.kl_coef * (kl * loss_mask).double()
            tokens = loss_mask.sum().clamp(min=1)
            batch.metrics["reward/kl"] = float((kl * loss_mask).sum() / tokens)
        batch.metrics.update(table.metrics())
        return {
            "table": table,
            "live": live,
            "in_baseline": torch.from_numpy(table.in_baseline.copy()),
            "loss_mask": loss_mask,
            "actor_mask": actor_mask,
            "token_level_rewards": rewards,
        }

    def _placed(self, table: RewardTable, batch: StepBatch) -> Tensor:
        """(B, R) float64: token scores where they were given, the rest on the last token."""
        ids, mask = batch["response_ids"], batch["response_mask"].numpy()
        rows = place(
            table.fused,
            table.token_parts,
            response_ids=ids,
            response_mask=[mask[row, : len(ids[row])] for row in range(len(ids))],
            whole=table.vetoed,
            responses=batch["responses"],
            decode=ResponseDecoder(self.models.tokenizer).text,
        )
        placed = torch.zeros(mask.shape, dtype=torch.float64)
        for row, values in enumerate(rows):
            placed[row, : len(values)] = torch.from_numpy(values)
        return placed


def place_on_last_token(values: Tensor, mask: Tensor) -> Tensor:
    """(B, R) float64: each row's value on its last token in `mask`, 0 elsewhere.

    Args:
        values: (B,) float64.
        mask: (B, R) 1 on response tokens. A row without any has nowhere to put its value: it is 0.
    """
    placed = torch.zeros(mask.shape, dtype=torch.float64)
    rows = torch.nonzero(mask.any(dim=1)).squeeze(-1)
    positions = torch.arange(mask.shape[1]).expand_as(mask)
    last = torch.where(mask.bool(), positions, torch.full_like(positions, -1)).amax(dim=1)
    placed[rows, last[rows]] = values[rows].double()
    return placed
