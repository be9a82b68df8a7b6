"""The models of a run, their optimisers, and what nodes ask of them.

On one machine there are up to four: the policy (trained), its copy that generates (another type),
the reference (frozen), and the critic. The nodes of the dataflow know this class and no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from verl_core.config import RunConfig
from verl_core.hybrid.rollout.base import RolloutEngine
from verl_core.hybrid.rollout.hf import HFRollout
from verl_core.hybrid.weights import rollout_copy, sync_rollout_weights
from verl_core.trainer.checkpoint import Checkpoint
from verl_core.trainer.critic import Critic
from verl_core.trainer.learning_rate import learning_rate
from verl_core.trainer.log_probs import (
    at_responses,
    response_log_probs,
    supports_shared_prefix,
)
from verl_core.trainer.model_source import ModelSource, identity
from verl_core.trainer.models import (
    configured_context,
    dtype_of,
    load_policy,
    load_tokenizer,
    stop_ids,
)
from verl_core.trainer.packing import TokenBatch, plan_micro_batches
from verl_core.trainer.precision import autocast_type


class ModelSet:
    """Empty until `load`; a pipeline may be built and checked around it before.

    `context` is how many tokens the policy can read, None where it says nothing of a bound. It and
    `tokenizer` are there from `read` on. `notices` are what a person must be told of how the models
    were loaded.

    Args:
        cfg: ``model``, ``rollout``, ``optim``, ``trainer`` and ``algorithm`` are read.
    """

    policy: Any
    reference: Any
    tokenizer: Any
    context: int | None
    critic: Critic
    rollout: RolloutEngine
    optimizer: torch.optim.AdamW
    critic_optimizer: torch.optim.AdamW

    def __init__(self, cfg: RunConfig) -> None:
        self.cfg = cfg
        self.autocast: torch.dtype | None = None
        self.shared_prefix = False
        self.notices: list[str] = []
        self._identities: dict[str, dict[str, str]] = {}
        self._rollout_model: Any = None

    # -- loading -----------------------------------------------------------------------------

    def read(self, policy: ModelSource) -> None:
        """Load the tokenizer, and look up the context: what prompts are checked with, no weights.

        Raises:
            ConfigError: the folder has no tokenizer, or no model that transformers knows.
        """
        self.tokenizer = load_tokenizer(policy)
        self.context = configured_context(policy)
        self._identities["model"] = identity(policy.path, policy.id)

    def load(
        self,
        policy: ModelSource,
        *,
        critic: ModelSource | None = None,
        reference: ModelSource | None = None,
        resume: Checkpoint | None = None,
    ) -> None:
        """Load what the run needs, `read` included where that was not done before.

        Args:
            policy: the policy's first weights, and its tokenizer.
            critic: what the critic starts from; None for no critic.
            reference: the reference model; None for none.
            resume: the checkpoint to go on from.

        Raises:
            CheckpointError: one of its files cannot be read.
        """
        cfg = self.cfg
        if not hasattr(self, "tokenizer"):
            self.read(policy)
        newest = ModelSource(resume.policy, "folder", policy.id) if resume else policy
        self.policy = self._load(newest)
        device = next(self.policy.parameters()).device
        self.autocast = autocast_type(self._precision(resume), device)
        self.shared_prefix = supports_shared_prefix(self.policy)
        self.optimizer = self._adamw(list(self.policy.parameters()), cfg.optim.lr)
        if reference is not None:
            self.reference = self._load(reference).requires_grad_(False)
        if critic is not None:
            self.critic = Critic(self._load(critic))
            self._identities["critic"] = identity(critic.path, critic.id)
            self.critic_optimizer = self._adamw(
                self.critic.trained_parameters(), cfg.optim.critic_lr
            )
        if resume is not None:
            self._restore(resume, critic is not None)
        self._start_rollout()

    def _load(self, source: ModelSource) -> Any:
        return load_policy(source, dtype_of(self.cfg.model.dtype), self.cfg.seed)

    def _start_rollout(self) -> None:
        self._rollout_model = rollout_copy(self.policy, dtype_of(self.cfg.rollout.dtype))
        self.rollout = HFRollout(
            self._rollout_model,
            stop_ids=stop_ids(self.policy, self.tokenizer),
            pad_id=self.tokenizer.pad_token_id,
            batch_rows=self.cfg.rollout.batch_rows,
        )

    def _precision(self, resume: Checkpoint | None) -> str:
        """``auto`` is decided once: a resumed run computes as it began, whatever would be faster
        now. What the config names holds, as its other settings do, and is told where it is new."""
        wanted = self.cfg.optim.autocast
        if resume is None:
            return wanted
        before = str(resume.info()["autocast"])
        if wanted not in ("auto", before):
            self.notices.append(
                f"optim.autocast is {wanted} now, and was {before}: from step {resume.step + 1} on "
                "the run computes otherwise than it would have without the change"
            )
        return before if wanted == "auto" else wanted

    def _adamw(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.AdamW:
        optim = self.cfg.optim
        return torch.optim.AdamW(
            parameters, lr=lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=True
        )

    def _restore(self, checkpoint: Checkpoint, critic: bool) -> None:
        self._restore_optimizer(self.optimizer, checkpoint.load("optimizer"))
        if critic:
            self.critic.load_state_dict(checkpoint.load("critic"))
            self._restore_optimizer(self.critic_optimizer, checkpoint.load("critic_optimizer"))

    def _restore_optimizer(self, optimizer: torch.optim.AdamW, state: dict[str, Any]) -> None:
        """Load its moments; its settings are the config's, as its rate is at every step."""
        optim = self.cfg.optim
        optimizer.load_state_dict(state)
        for group in optimizer.param_groups:
            group.update(betas=optim.betas, weight_decay=optim.weight_decay)

    def objects(self) -> dict[str, Any]:
        """What a checkpoint holds beside the policy's weights."""
        objects: dict[str, Any] = {"optimizer": self.optimizer.state_dict()}
        if hasattr(self, "critic"):
            objects["critic"] = self.critic.state_dict()
            objects["critic_optimizer"] = self.critic_optimizer.state_dict()
        return objects

    def info(self) -> dict[str, Any]:
        """What a checkpoint notes of how the run computes, and of which models it began with."""
        return {"autocast": "none" if self.autocast is None else "bfloat16", **self._identities}

    # -- what nodes ask ----------------------------------------------------------------------

    @staticmethod
    def token_batch(columns: Mapping[str, Any]) -> TokenBatch:
        """The token ids of a step's B rows."""
        return TokenBatch(
            prompt_ids=columns["prompt_ids"],
            response_ids=columns["response_ids"],
            groups=columns["group_index"].numpy(),
        )

    def policy_log_probs(self, columns: Mapping[str, Any]) -> Tensor:
        """(B, R) float32 under the policy as it is now, without gradient; 0 behind the end."""
        return self._log_probs(self.policy, columns)

    def reference_log_probs(self, columns: Mapping[str, Any]) -> Tensor:
        """(B, R) float32 under the reference model; 0 behind the end."""
        return self._log_probs(self.reference, columns)

    def log_probs_with_grad(self, tokens: TokenBatch, width: int) -> tuple[Tensor, Tensor]:
        """``(log_probs, entropy)`` (b, `width`) float32 of a micro-batch.

        The entropy carries a gradient only where ``entropy_coef`` asks for one.
        """
        result = response_log_probs(
            self.policy,
            tokens,
            shared_prefix=self.shared_prefix,
            temperature=self.cfg.rollout.temperature,
            with_entropy=True,
            autocast=self.autocast,
        )
        assert result.entropy is not None
        entropy = result.entropy if self.cfg.algorithm.entropy_coef else result.entropy.detach()
        return tokens.to_padded(result.log_probs, width), tokens.to_padded(entropy, width)

    def values(self, columns: Mapping[str, Any]) -> Tensor:
        """(B, R) float32 values of the response tokens, without gradient."""
        return self._in_parts(columns, lambda part: self.values_packed(part))

    def values_with_grad(self, tokens: TokenBatch, width: int) -> Tensor:
        """(b, `width`) float32 values of a micro-batch."""
        return tokens.to_padded(self.values_packed(tokens), width)

    def values_packed(self, tokens: TokenBatch) -> Tensor:
        """(N,) float32 values, packed."""
        return at_responses(
            self.critic.model,
            tokens,
            self.critic.values,
            shared_prefix=self.shared_prefix,
            autocast=self.autocast,
        ).float()

    def _log_probs(self, model: Any, columns: Mapping[str, Any]) -> Tensor:
        return self._in_parts(
            columns,
            lambda part: (
                response_log_probs(
                    model,
                    part,
                    shared_prefix=self.shared_prefix,
                    temperature=self.cfg.rollout.temperature,
                    autocast=self.autocast,
                ).log_probs
            ),
        )

    def _in_parts(self, columns: Mapping[str, Any], compute: Any) -> Tensor:
        """(B, R) of `compute`'s packed values, micro-batch by micro-batch, without gradient."""
        tokens = self.token_batch(columns)
        result = torch.zeros(columns["response_mask"].shape, dtype=torch.float32)
        with torch.no_grad():
            for rows in self._plan(tokens):
                part = tokens.take(rows)
                result[torch.from_numpy(rows)] = part.to_padded(compute(part), result.shape[1])
        return result

    def _plan(self, tokens: TokenBatch) -> list[np.ndarray[Any, Any]]:
        rows = self.cfg.trainer.micro_batch_rows
        return list(plan_micro_batches(tokens, max_rows=rows, shared_prefix=self.shared_prefix))

    # -- the update --------------------------------------------------------------------------

    def step_actor(self, step: int) -> float:
        """One step of the policy's optimiser; the gradient's norm before clipping."""
        norm = self._step(self.optimizer, self.policy, self.cfg.optim.lr, step)
        if self._rollout_model is not self.policy:
            sync_rollout_weights(self.policy, self._rollout_model)
        return norm

    def step_critic(self, step: int) -> float:
        """One step of the critic's optimiser; the gradient's norm before clipping."""
        return self._step(self.critic_optimizer, self.critic, self.cfg.optim.critic_lr, step)

    def learning_rate(self) -> float:
        """The policy's rate in its last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _step(
        self, optimizer: torch.optim.AdamW, model: nn.Module, base: float, step: int
    ) -> float:
        optim = self.cfg.optim
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(
                base,
                step,
                steps=self.cfg.trainer.steps,
                warmup=optim.warmup_steps,
                schedule=optim.schedule,
            )
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), optim.max_grad_norm))
        if np.isfinite(norm):  # a gradient of NaN would poison every weight: leave it out, logged
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm
