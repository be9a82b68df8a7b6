"""One sequence a response: its prompt, then the response but for its last token.

The last token is predicted, not read; reading it would cost a token and change nothing.
"""

from __future__ import annotations

import numpy as np
import torch

from verl_core.trainer.packing.batch import ModelInputs, TokenBatch


def padded_inputs(batch: TokenBatch) -> ModelInputs:
    """`batch` as B sequences, padded on the right."""
    read = np.maximum(batch.lengths - 1, 0)
    lengths = batch.prompt_lengths + read
    width = int(lengths.max(initial=0))
    input_ids = np.zeros((len(batch), width), dtype=np.int64)
    predict = []
    for row, (prompt, response) in enumerate(
        zip(batch.prompt_ids, batch.response_ids, strict=True)
    ):
        input_ids[row, : len(prompt)] = prompt
        input_ids[row, len(prompt) : lengths[row]] = response[: read[row]]
        first = row * width + len(prompt) - 1
        predict.append(np.arange(first, first + len(response)))
    positions = np.broadcast_to(np.arange(width), (len(batch), width)).copy()
    return ModelInputs(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(positions),
        mask=None,
        predict=torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *predict])),
    )
