"""From a loss a token to one number, so that gradient accumulation equals one big batch.

Every micro-batch divides by the count of the whole (mini-)batch, not by its own: the sum over
micro-batches is then the batch's mean, however the rows were split and however long they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Denominator:
    """What token losses are divided by.

    Args:
        mode: ``token-mean`` (each token of the batch weighs the same) or ``seq-mean-token-mean``
            (each response weighs the same, its tokens share its weight).
        tokens: tokens of the whole batch that count.
        rows: rows of the whole batch with at least one such token.
    """

    mode: str
    tokens: int
    rows: int

    @classmethod
    def of(cls, mode: str, mask: Tensor) -> Denominator:
        """The counts of `mask` (B, R), the whole batch's."""
        on = mask.bool()
        return cls(mode, int(on.sum()), int(on.any(dim=1).sum()))


def aggregate(losses: Tensor, mask: Tensor, denominator: Denominator) -> Tensor:
    """This micro-batch's share of the batch's mean loss, a scalar with gradient.

    Args:
        losses: (b, R) a loss a token; values outside `mask` do not count.
        mask: (b, R) 1 where a token counts.
        denominator: of the whole batch.
    """
    on = mask.bool()
    kept = losses.masked_fill(~on, 0.0)
    if denominator.mode == "token-mean":
        return kept.sum() / max(denominator.tokens, 1)
    if denominator.mode == "seq-mean-token-mean":
        lengths = on.sum(dim=1).clamp(min=1)
        return (kept.sum(dim=1) / lengths).sum() / max(denominator.rows, 1)
    raise ValueError(f"unknown loss_agg {denominator.mode!r}")
