"""The critic of PPO: a language model's body with a value head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Critic(nn.Module):
    """Values of the tokens of a response.

    The head starts at zero, so that the first advantages are the plain discounted rewards and not
    the noise of an untrained head.

    Args:
        model: a causal language model; its own head is not used.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        hidden = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.head = nn.Linear(hidden, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def values(self, hidden: Tensor) -> Tensor:
        """(N,) float32 values of N hidden states (N, H)."""
        return self.head(hidden.float()).squeeze(-1)  # type: ignore[no-any-return]

    def trained_parameters(self) -> list[nn.Parameter]:
        """Everything but the language model's own head, which gets no gradient here."""
        output = self.model.get_output_embeddings()  # type: ignore[operator]
        tied = self.model.get_input_embeddings().weight  # type: ignore[operator]
        unused = {id(p) for p in output.parameters() if p is not tied} if output else set()
        return [p for p in self.parameters() if id(p) not in unused]

    def save(self, path: Path) -> None:
        torch.save(self.state_dict(), path)

    def load(self, path: Path) -> None:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        self.load_state_dict(state)
