"""One sequence a group: the prompt once, then its responses side by side.

A mask lets each response see the prompt and itself, and its positions go on from the prompt's
end, so every hidden state is the one that the padded layout gives: G (P + R) tokens become
P + G R. As in the padded layout, no response's last token is read.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from verl_core.trainer.packing.batch import ModelInputs, TokenBatch

_PROMPT, _PADDING = 0, -1


def shared_prefix_inputs(batch: TokenBatch) -> ModelInputs:
    """`batch` as one sequence a group, padded on the right.

    Raises:
        ValueError: two rows of one group have different prompts.
    """
    members: dict[int, list[int]] = {}
    for row, group in enumerate(batch.groups.tolist()):
        members.setdefault(group, []).append(row)
    read = np.maximum(batch.lengths - 1, 0)
    width = max(
        (int(batch.prompt_lengths[rows[0]] + read[rows].sum()) for rows in members.values()),
        default=0,
    )
    input_ids = np.zeros((len(members), width), dtype=np.int64)
    positions = np.zeros((len(members), width), dtype=np.int64)
    segments = np.full((len(members), width), _PADDING, dtype=np.int64)
    predict: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(batch)
    for sequence, rows in enumerate(members.values()):
        prompt = _common_prompt(batch, rows)
        size = len(prompt)
        input_ids[sequence, :size] = prompt
        positions[sequence, :size] = np.arange(size)
        segments[sequence, :size] = _PROMPT
        start = size
        for segment, row in enumerate(rows, start=1):
            place = slice(start, start + int(read[row]))
            input_ids[sequence, place] = batch.response_ids[row][: read[row]]
            positions[sequence, place] = np.arange(size, size + int(read[row]))
            segments[sequence, place] = segment
            # The prompt's last token predicts the first response token, for every row of a group.
            tail = np.arange(place.start, place.stop)
            before = [size - 1] if batch.lengths[row] else []
            predict[row] = sequence * width + np.concatenate([before, tail]).astype(np.int64)
            start = place.stop
    return ModelInputs(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(positions),
        mask=_block_mask(torch.from_numpy(segments)),
        predict=torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *predict])),
    )


def _common_prompt(batch: TokenBatch, rows: list[int]) -> NDArray[np.int64]:
    prompt = batch.prompt_ids[rows[0]]
    for row in rows[1:]:
        other = batch.prompt_ids[row]
        if other is not prompt and not np.array_equal(other, prompt):
            raise ValueError(
                f"rows {rows[0]} and {row} are of group {batch.groups[row]} "
                "but have different prompts"
            )
    return prompt


def _block_mask(segments: torch.Tensor) -> torch.Tensor:
    """(S, 1, L, L) bool of (S, L) segments: causal, and within the prompt or one response.

    Padding sees the prompt, so that no query is left without a key.
    """
    length = segments.shape[1]
    causal = torch.ones((length, length), dtype=torch.bool).tril()
    same = segments[:, :, None] == segments[:, None, :]
    prompt = (segments == _PROMPT)[:, None, :]
    return (causal & (same | prompt))[:, None]
