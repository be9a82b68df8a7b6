"""Generation with a Hugging Face model in this process.

Each prompt is read once, and its keys and values are copied to its n responses; tokens come from
`sampling`; rows that have ended leave the batch once enough of them have. Row i's random numbers
depend on the seed and on i alone, so cutting a rollout into other batches changes nothing but the
rounding of the logits (3e-5 in fp32, up to 4e-3 in bf16, through padding); the same rollout cut
the same way gives the same bits.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verl_core.hybrid.body import model_body
from verl_core.hybrid.rollout.base import Ended, OnEnded, Rollout, SamplingParams
from verl_core.hybrid.rollout.growing_cache import keep_rows, new_cache, spread
from verl_core.hybrid.rollout.sampling import check_temperature, row_uniforms, sample_tokens
from verl_reward_sdk import ConfigError


class HFRollout:
    """Samples responses from `model`, whose weights the trainer refreshes in place.

    Args:
        model: a causal language model of transformers, in eval mode.
        stop_ids: tokens that end a response; none leaves max_new_tokens alone to end it.
        pad_id: any token id of the vocabulary; padding is masked and never read.
        batch_rows: at most so many responses are generated at once.
        compact_at: ended rows leave the batch when they are this share of it; above 1 they stay.
    """

    def __init__(
        self,
        model: Any,
        *,
        stop_ids: Collection[int],
        pad_id: int,
        batch_rows: int = 64,
        compact_at: float = 0.125,
    ) -> None:
        if batch_rows < 1:
            raise ConfigError(f"batch_rows is {batch_rows}; it must be at least 1")
        self.model = model
        self._pad_id = pad_id
        self._batch_rows = batch_rows
        self._compact_at = compact_at
        self._device = next(model.parameters()).device
        self._stop_ids = frozenset(stop_ids)
        self._stop = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=self._device)
        self._sdpa = getattr(model.config, "_attn_implementation", None) == "sdpa"
        self._body, self._head = model_body(model), model.get_output_embeddings()
        parameters = inspect.signature(self._body.forward).parameters
        # transformers 5.24 renamed past_key_values.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def generate(
        self,
        prompt_ids: Sequence[NDArray[np.int64]],
        n: int,
        *,
        seed: int,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        with_log_probs: bool = False,
        on_ended: OnEnded | None = None,
    ) -> Rollout:
        """`n` responses to each prompt; see `RolloutEngine.generate`."""
        started = time.perf_counter()
        params = SamplingParams(max_new_tokens, temperature, top_p, top_k, seed)
        check_temperature(temperature)
        self._check_prompts(prompt_ids, n, max_new_tokens)
        rows = len(prompt_ids) * n
        batches = np.array_split(np.arange(rows), max(1, -(-rows // self._batch_rows)))
        tokens = np.full((rows, max_new_tokens), self._pad_id, dtype=np.int64)
        log_probs = np.zeros((rows, max_new_tokens), dtype=np.float32)
        lengths = np.zeros(rows, dtype=np.int64)
        # Not inference_mode: what a model caches there could not be trained through afterwards.
        with torch.no_grad():
            for batch in batches:
                if len(batch):
                    decoding = _Decoding(self, prompt_ids, batch, n, params, on_ended)
                    tokens[batch], log_probs[batch], lengths[batch] = decoding.run()
        responses = [tokens[row, : lengths[row]].copy() for row in range(rows)]
        return Rollout(
            response_ids=responses,
            finish_reason=[self.finish_reason(response) for response in responses],
            log_probs=(
                [log_probs[row, : lengths[row]].copy() for row in range(rows)]
                if with_log_probs
                else None
            ),
            tokens=int(lengths.sum()),
            seconds=time.perf_counter() - started,
        )

    def finish_reason(self, response: NDArray[np.int64]) -> str:
        """Why a response ended: ``stop`` behind an end token, else ``length``."""
        return "stop" if int(response[-1]) in self._stop_ids else "length"

    def forward(self, input_ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """(R, V) logits behind the last token of each row; appends to `cache`."""
        output = self._body(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_argument: cache},
        )
        logits: Tensor = self._head(output.last_hidden_state[:, -1].contiguous())
        return logits

    def _check_prompts(
        self, prompt_ids: Sequence[NDArray[np.int64]], n: int, max_new_tokens: int
    ) -> None:
        if n < 1:
            raise ConfigError(f"n is {n}; each prompt needs at least 1 response")
        context = getattr(self.model.config, "max_position_embeddings", None)
        for place, ids in enumerate(prompt_ids):
            if len(ids) == 0:
                raise ConfigError(f"prompt {place} has no tokens")
            if context is not None and len(ids) + max_new_tokens > context:
                raise ConfigError(
                    f"prompt {place} has {len(ids)} tokens; with max_new_tokens {max_new_tokens} "
                    f"it exceeds the model's context of {context}"
                )


class _Decoding:
    """One batch on its way: the cache, and which rows are still in it."""

    def __init__(
        self,
        engine: HFRollout,
        prompt_ids: Sequence[NDArray[np.int64]],
        batch: NDArray[np.int64],
        n: int,
        params: SamplingParams,
        on_ended: OnEnded | None,
    ) -> None:
        self._engine = engine
        self._params = params
        self._batch, self._on_ended = batch, on_ended
        device = engine._device
        prompts, self._prompt_of = np.unique(batch // n, return_inverse=True)
        self._prompts = [np.asarray(prompt_ids[prompt], dtype=np.int64) for prompt in prompts]
        length = params.max_new_tokens
        self._uniforms = torch.from_numpy(row_uniforms(params.seed, batch.tolist(), length))
        self._uniforms = self._uniforms.to(device)
        self._tokens = torch.full((len(batch), length), engine._pad_id, device=device)
        self._log_probs = torch.zeros((len(batch), length), device=device)
        self._lengths = torch.zeros(len(batch), dtype=torch.int64, device=device)

    def run(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """``(tokens, log_probs, lengths)``: (R, T), (R, T), (R,), padded on the right."""
        logits = self._prefill()
        device = logits.device
        rows = torch.arange(len(self._lengths), device=device)  # rows of the batch, still in it
        ended = torch.zeros_like(rows, dtype=torch.bool)
        for step in range(self._params.max_new_tokens):
            sampled, log_probs = sample_tokens(logits, self._uniforms[rows, step], self._params)
            running = rows[~ended]
            self._tokens[running, step] = sampled[~ended]
            self._log_probs[running, step] = log_probs[~ended]
            self._lengths[running] += 1
            stops = torch.isin(sampled, self._engine._stop)
            last = step + 1 == self._params.max_new_tokens
            if self._on_ended is not None:
                self._tell(rows[~ended & (stops | last)], self._on_ended)
            ended = ended | stops
            count = int(ended.sum())
            if count == len(rows) or last:
                break
            if count >= self._engine._compact_at * len(rows):
                kept = (~ended).nonzero().squeeze(-1)
                rows, sampled, ended = rows[kept], sampled[kept], ended[kept]
                self._keep(kept)
            logits = self._step(sampled)
        return (
            self._tokens.cpu().numpy(),
            self._log_probs.cpu().numpy(),
            self._lengths.cpu().numpy(),
        )

    def _tell(self, rows: Tensor, on_ended: OnEnded) -> None:
        """Hand on rows of the batch that have just ended."""
        if not len(rows):
            return
        lengths = self._lengths[rows].tolist()
        tokens = self._tokens[rows].cpu().numpy()
        responses = [row[:length].copy() for row, length in zip(tokens, lengths, strict=True)]
        on_ended(
            Ended(
                self._batch[rows.cpu().numpy()].tolist(),
                responses,
                [self._engine.finish_reason(response) for response in responses],
            )
        )

    def _prefill(self) -> Tensor:
        """Read each prompt once, padded on the left; then one row a response. (R, V) logits."""
        engine, device = self._engine, self._engine._device
        width = max(len(ids) for ids in self._prompts)
        input_ids = np.full((len(self._prompts), width), engine._pad_id, dtype=np.int64)
        mask = np.zeros((len(self._prompts), width), dtype=bool)
        for place, ids in enumerate(self._prompts):
            input_ids[place, width - len(ids) :] = ids
            mask[place, width - len(ids) :] = True
        seen = torch.from_numpy(mask).to(device)
        positions = (seen.cumsum(dim=1) - 1).clamp_(min=0)
        self._cache, self._reserved = new_cache(engine.model.config)
        logits = engine.forward(
            torch.from_numpy(input_ids).to(device), seen.long(), positions, self._cache
        )
        prompt_of = torch.from_numpy(self._prompt_of).to(device)
        capacity = width + self._params.max_new_tokens
        spread(self._cache, prompt_of, capacity)
        self._mask = torch.ones((len(prompt_of), capacity), dtype=torch.bool, device=device)
        self._mask[:, :width] = seen[prompt_of]
        self._position = seen.sum(dim=1)[prompt_of]
        self._width = width
        return logits[prompt_of]

    def _step(self, sampled: Tensor) -> Tensor:
        """Append one token a row; (R, V) logits behind it."""
        self._width += 1
        mask = self._mask[:, : self._width]
        # A finished 4D mask spares building one a step, and keeps sdpa from a kernel that is
        # slow for one query with grouped heads. Other layers or kernels build their own.
        direct = self._reserved and self._engine._sdpa
        logits = self._engine.forward(
            sampled[:, None],
            mask[:, None, None, :] if direct else mask.long(),
            self._position[:, None],
            self._cache,
        )
        self._position = self._position + 1
        return logits

    def _keep(self, kept: Tensor) -> None:
        keep_rows(self._cache, kept)
        self._mask, self._position = self._mask[kept], self._position[kept]
