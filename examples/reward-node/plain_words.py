"""A reward of one's own: does an answer speak plain words, or like an office?

`PlainWordsNode` asks a small classifier, whose weights lie beside the config as safetensors.
`train_classifier.py` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from verl_core.trainer.reward import RewardNode


class PlainWords(nn.Module):
    """A text's words and pairs of words, hashed into a bag of embeddings, and one logit of it.

    Args:
        buckets: how many hashes there are.
        width: of an embedding.
    """

    def __init__(self, buckets: int = 2048, width: int = 8) -> None:
        super().__init__()
        self.buckets = buckets
        self.bag = nn.EmbeddingBag(buckets, width, mode="mean")
        self.head = nn.Linear(width, 1)

    def forward(self, texts: Sequence[str]) -> Tensor:
        """(B,) logits; above 0 a text is plain."""
        rows = [self.hashes(text) for text in texts]
        starts = torch.tensor([0, *(len(row) for row in rows)])[:-1].cumsum(0)
        ids = torch.tensor([number for row in rows for number in row])
        return self.head(self.bag(ids, starts)).squeeze(-1)

    def hashes(self, text: str) -> list[int]:
        """The buckets of a text; at least one, also where it has no words."""
        words = ["".join(filter(str.isalnum, word)) for word in text.lower().split()]
        words = ["", *filter(None, words)]
        pairs = [f"{first} {second}" for first, second in pairwise(words)]
        return [_hash(piece) % self.buckets for piece in (words[1:] + pairs or words)]


class PlainWordsNode(RewardNode):
    """The probability that a response is plain, less a price for leaving the reference model.

    Args:
        weights: a safetensors file; a relative path counts from the config's folder.
        kl_coef: what a nat of divergence from the reference model costs, summed over a response.
    """

    def __init__(self, weights: str = "plain_words.safetensors", kl_coef: float = 0.02) -> None:
        super().__init__()
        self.classifier = PlainWords()
        self.classifier.load_state_dict(load_file(weights))  # strict: no weight is made up
        self.classifier.eval().requires_grad_(False)
        self.kl_coef = kl_coef

    def compute_reward(self, batch: dict[str, Any]) -> Tensor:
        """(B,) rewards of ``batch["responses"]``."""
        plain = torch.sigmoid(self.classifier(batch["responses"]))
        said = batch["response_mask"].sum(dim=1) > 1  # the end token alone is no answer
        return plain * said - self.kl_coef * self._compute_kl_penalty(batch)


def _hash(piece: str) -> int:
    """FNV-1a, 32 bits: the same in every process, as Python's own `hash` is not."""
    value = 2166136261
    for byte in piece.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value
