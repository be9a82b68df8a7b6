"""The update stage: one or more optimiser steps on a step's responses (PPO; GRPO's actor too).

Rows go through the model in micro-batches. Each micro-batch's loss is divided by the token count
of its whole mini-batch, so that accumulated gradients are those of one big batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from verl_core.config import RunConfig
from verl_core.dataflow import Node, StepBatch
from verl_core.trainer.kl import kl_estimate
from verl_core.trainer.losses.aggregate import Denominator, aggregate
from verl_core.trainer.losses.clipped import clipped_policy_loss
from verl_core.trainer.losses.value import clipped_value_loss
from verl_core.trainer.memory import release_free_memory
from verl_core.trainer.model_set import ModelSet
from verl_core.trainer.packing import TokenBatch, plan_micro_batches
from verl_core.trainer.series import TRAINED_TOKENS

#: The part of `loss_mask` and its like that belongs to some rows.
Rows = np.ndarray[Any, np.dtype[np.int64]]


class UpdateNode(Node):
    """Updates the actor, and the critic where there is one.

    The actor's loss a token: clipped surrogate + kl_coef * KL to the reference (``kl_in: loss``)
    - entropy_coef * entropy, over ``actor_mask``. The critic's: clipped squared error over
    ``loss_mask``.

    Args:
        models: whose policy, critic and optimisers are used.
        cfg: ``algorithm``, ``optim`` and ``trainer`` of it.
        with_critic: the advantages came from a critic, which learns too.
        old_log_probs: they are in the batch. Where they are not, each row is used once, before the
            policy moves: the old log-probabilities are then the new ones, without gradient.
    """

    name = "ppo"
    writes: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, models: ModelSet, cfg: RunConfig, *, with_critic: bool, old_log_probs: bool
    ) -> None:
        self.models, self.cfg = models, cfg
        self.with_critic, self.with_old = with_critic, old_log_probs
        self.kl_coef = cfg.algorithm.kl_coef if cfg.algorithm.kl_in == "loss" else 0.0
        self.entropy_coef = cfg.algorithm.entropy_coef
        reads = {"prompt_ids", "response_ids", "group_index", "advantages"}
        reads |= {"loss_mask", "actor_mask"}
        reads |= {"old_log_probs"} if old_log_probs else set()
        reads |= {"ref_log_prob"} if self.kl_coef else set()
        reads |= {"values", "returns"} if with_critic else set()
        self.reads = frozenset(reads)  # type: ignore[misc]

    def run(self, batch: StepBatch) -> Mapping[str, Any]:
        tokens = self.models.token_batch(batch.columns)
        figures: dict[str, list[float]] = defaultdict(list)
        trained = 0.0
        for rows in self._mini_batches(batch):
            found = self._update_actor(batch, tokens, rows)
            if self.with_critic:
                found |= self._update_critic(batch, tokens, rows)
            trained += found.pop(TRAINED_TOKENS, 0.0)
            for name, value in found.items():
                figures[name].append(value)
        batch.metrics.update({name: float(np.mean(values)) for name, values in figures.items()})
        batch.metrics["actor/lr"] = self.models.learning_rate()
        batch.metrics[TRAINED_TOKENS] = trained
        return {}

    def _mini_batches(self, batch: StepBatch) -> list[Rows]:
        """Row numbers of each optimiser step: whole groups, ``minibatches`` of them an epoch."""
        groups = batch["group_index"].numpy()
        chosen: list[Rows] = []
        for _ in range(self.cfg.algorithm.epochs):
            parts = np.array_split(np.unique(groups), self.cfg.algorithm.minibatches)
            chosen.extend(np.flatnonzero(np.isin(groups, part)) for part in parts if len(part))
        return chosen

    # -- actor -------------------------------------------------------------------------------

    def _update_actor(self, batch: StepBatch, tokens: TokenBatch, rows: Rows) -> dict[str, float]:
        """One optimiser step; its figures, none where no row changes the gradient."""
        whole = Denominator.of(self.cfg.algorithm.loss_agg, batch["actor_mask"][rows])
        plain = self.kl_coef == 0 and self.entropy_coef == 0
        useful = rows[self._useful(batch, rows, plain=plain)]
        if not len(useful):
            return {}
        seen = int(batch["actor_mask"][useful].sum())
        sums: dict[str, float] = defaultdict(float)
        self.models.optimizer.zero_grad(set_to_none=True)
        for part in self._plan(tokens, useful):
            loss, figures = self._actor_loss(batch, tokens.take(part), part, whole)
            loss.backward()  # type: ignore[no-untyped-call]
            release_free_memory()
            sums["actor/loss"] += float(loss.detach())
            for name, value in figures.items():
                sums[name] += value / seen
        sums["actor/grad_norm"] = self.models.step_actor(batch.step)
        return sums | {TRAINED_TOKENS: float(seen)}

    @staticmethod
    def _useful(batch: StepBatch, rows: Rows, *, plain: bool) -> Any:
        """Rows that change the gradient: a group that tells nothing only does so through KL or
        entropy. They are left out of the work, never out of the token count."""
        useful = batch["actor_mask"][rows].any(dim=1)
        if plain:
            useful &= (batch["advantages"][rows] != 0).any(dim=1)
        return useful.numpy()

    def _actor_loss(
        self, batch: StepBatch, tokens: TokenBatch, rows: Rows, whole: Denominator
    ) -> tuple[Tensor, dict[str, float]]:
        """This micro-batch's share of the loss, and sums over its tokens to be logged."""
        algorithm = self.cfg.algorithm
        width = batch["actor_mask"].shape[1]
        mask: Tensor = batch["actor_mask"][rows]
        log_probs, entropy = self.models.log_probs_with_grad(tokens, width)
        old = batch["old_log_probs"][rows] if self.with_old else log_probs.detach()
        advantages = batch["advantages"][rows].to(log_probs.dtype)
        high = algorithm.clip_ratio_high
        losses, clipped = clipped_policy_loss(
            log_probs,
            old,
            advantages,
            low=algorithm.clip_ratio,
            high=algorithm.clip_ratio if high is None else high,
        )
        figures = {"actor/clip_fraction": float((clipped * mask).sum())}
        figures["actor/entropy"] = float((entropy.detach() * mask).sum())
        if "ref_log_prob" in batch:
            ref = batch["ref_log_prob"][rows]
            estimator = algorithm.kl_estimator if self.kl_coef else "k3"
            kl = kl_estimate(log_probs if self.kl_coef else log_probs.detach(), ref, estimator)
            figures["actor/kl"] = float((kl.detach() * mask).sum())
            losses = losses + self.kl_coef * kl
        if self.entropy_coef:
            losses = losses - self.entropy_coef * entropy
        return aggregate(losses, mask, whole), figures

    # -- critic ------------------------------------------------------------------------------

    def _update_critic(self, batch: StepBatch, tokens: TokenBatch, rows: Rows) -> dict[str, float]:
        mask: Tensor = batch["loss_mask"][rows]
        if not mask.any():
            return {}
        whole = Denominator.of(self.cfg.algorithm.loss_agg, mask)
        live = rows[mask.any(dim=1).numpy()]
        sums: dict[str, float] = defaultdict(float)
        self.models.critic_optimizer.zero_grad(set_to_none=True)
        for part in self._plan(tokens, live):
            values = self.models.values_with_grad(tokens.take(part), mask.shape[1])
            losses, clipped = clipped_value_loss(
                values,
                batch["values"][part],
                batch["returns"][part].to(values.dtype),
                clip=self.cfg.algorithm.value_clip,
            )
            here = batch["loss_mask"][part]
            loss = aggregate(losses, here, whole)
            loss.backward()  # type: ignore[no-untyped-call]
            sums["critic/loss"] += float(loss.detach())
            sums["critic/clip_fraction"] += float((clipped * here).sum()) / whole.tokens
        return sums | {"critic/grad_norm": self.models.step_critic(batch.step)}

    def _plan(self, tokens: TokenBatch, rows: Rows) -> list[Rows]:
        return plan_micro_batches(
            tokens,
            max_rows=self.cfg.trainer.micro_batch_rows,
            shared_prefix=self.models.shared_prefix,
            rows=rows,
        )
