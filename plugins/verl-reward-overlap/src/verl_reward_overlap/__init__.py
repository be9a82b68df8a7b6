"""``bleu``, ``chrf`` and ``rouge``: how much of a reference answer a response repeats.

One module behind three entry points. Importing it loads neither sacrebleu nor rouge-score: each
provider imports its own library in ``setup()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verl_reward_overlap.bleu import Bleu, BleuConfig
from verl_reward_overlap.chrf import Chrf, ChrfConfig
from verl_reward_overlap.rouge import Rouge, RougeConfig
from verl_reward_sdk import RewardProvider, hookimpl

VERL_REWARD_API = 1

__all__ = ["Bleu", "BleuConfig", "Chrf", "ChrfConfig", "Rouge", "RougeConfig"]


@hookimpl
def verl_reward_providers() -> Iterator[type[RewardProvider[Any]]]:
    yield Bleu
    yield Chrf
    yield Rouge
