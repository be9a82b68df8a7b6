"""The peer of `train_step.py`: the same step as one would write it with transformers alone.

`generate` for the rollout, then one padded sequence a response, whole logits, backward, AdamW. No
shared prefix, no packing, no group left out: what each row costs when nothing is done about it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, LogitsProcessor, StoppingCriteria

from verl_core.trainer.quiet import quiet_transformers

Ids = NDArray[np.int64]


class PlainStep:
    """A policy in float32, a copy of it that generates, and AdamW.

    Args:
        folder: the model.
        rollout_dtype: of the copy.
        autocast: of forward and backward; None for float32.
        lr: learning rate.
        micro_batch_rows: rows that go through the model at once.
        batch_rows: rows that are generated at once.
        pad_id: any token; padding is masked.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rollout_dtype: torch.dtype,
        autocast: torch.dtype | None,
        lr: float,
        micro_batch_rows: int,
        batch_rows: int,
        pad_id: int,
    ) -> None:
        with quiet_transformers():
            self.policy = _load(folder, torch.float32)
            self.sampler = _load(folder, rollout_dtype)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=lr, fused=True)
        self.autocast = autocast
        self.micro_batch_rows, self.batch_rows, self.pad_id = micro_batch_rows, batch_rows, pad_id

    def run(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> dict[str, float]:
        """Seconds of ``rollout`` and ``update`` of one step.

        Args:
            prompts: token ids of each row's prompt.
            responses: ours; the peer generates as many tokens a row, and learns from these.
        """
        start = time.perf_counter()
        for first in range(0, len(prompts), self.batch_rows):
            part = slice(first, first + self.batch_rows)
            self._generate(prompts[part], [len(response) for response in responses[part]])
        middle = time.perf_counter()
        self._update(prompts, responses)
        return {"rollout": middle - start, "update": time.perf_counter() - middle}

    def _generate(self, prompts: Sequence[Ids], lengths: Sequence[int]) -> None:
        ids, mask = _padded(prompts, self.pad_id, left=True)
        width = ids.shape[1]
        with torch.no_grad():
            self.sampler.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max(lengths),
                pad_token_id=self.pad_id,
                logits_processor=[_NoEnd(self.sampler.generation_config.eos_token_id)],
                stopping_criteria=[_AtLength(width, lengths)],
            )

    def _update(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> None:
        tokens = sum(len(response) for response in responses)
        generator = torch.Generator().manual_seed(0)
        advantages = torch.randn(len(prompts), generator=generator)
        self.optimizer.zero_grad(set_to_none=True)
        for first in range(0, len(prompts), self.micro_batch_rows):
            part = slice(first, first + self.micro_batch_rows)
            log_probs, on = self._log_probs(prompts[part], responses[part])
            loss = -(log_probs * advantages[part, None] * on).sum() / tokens
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            copies = zip(self.sampler.parameters(), self.policy.parameters(), strict=True)
            for copy, parameter in copies:
                copy.copy_(parameter)

    def _log_probs(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> tuple[Tensor, Tensor]:
        """(b, T - 1) log-probabilities of every token but the first, and 1 on responses'."""
        rows = [np.concatenate(pair) for pair in zip(prompts, responses, strict=True)]
        ids, mask = _padded(rows, self.pad_id, left=False)
        on = mask.clone()
        for row, prompt in enumerate(prompts):
            on[row, : len(prompt)] = 0
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast is not None):
            logits = self.policy(input_ids=ids, attention_mask=mask, use_cache=False).logits
        log_probs = torch.log_softmax(logits[:, :-1].float(), dim=-1)
        return log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1), on[:, 1:]


def _load(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


class _AtLength(StoppingCriteria):
    """Each row ends after as many tokens as ours had."""

    def __init__(self, prompt_width: int, lengths: Sequence[int]) -> None:
        self.ends = prompt_width + torch.tensor(lengths)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return self.ends <= input_ids.shape[1]


class _NoEnd(LogitsProcessor):
    """No row ends by itself: only then do both sides sample the same number of tokens."""

    def __init__(self, eos: int | Sequence[int] | None) -> None:
        self.eos = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, self.eos] = -torch.inf
        return scores


def _padded(rows: Sequence[Ids], pad: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """``(ids, mask)`` (B, T) int64."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros((len(rows), width), dtype=torch.int64)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place] = torch.from_numpy(row)
        mask[i, place] = 1
    return ids, mask
