"""What a scored batch holds: a column a mount, and what became of each row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from verl_core.rewards.statuses import SEVERITY, STATUSES, VETO, Codes
from verl_core.rewards.tokens import TokenPart
from verl_reward_sdk.protocols import Bools, Floats

Words = npt.NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class MountColumn:
    """What one mount said and what became of it.

    Args:
        name: the mount.
        role: ``reward`` or ``gate``.
        scores: (B,) float64 as the provider gave them, NaN where there is none.
        normalised: (B,) float64 as the fusion took them, NaN where the mount added nothing.
        weight: its weight under the table's revision; NaN for a gate.
        contribution: (B,) float64, its part of the fused reward, NaN where the row has none.
        codes: (B,) int8, `status` as numbers.
        words: (B,) int8, `severity` as numbers; all 0 for a reward.
        notes: row -> why it abstained or failed, or what the provider saw.
        extras: name -> (B,) float64, further columns of the provider, NaN where it was not asked.
        seconds: how long its call was executed.
        neutral: (B,) bool: rows where `normalised` comes of a neutral place, not of a score.
        unsure: (B,) bool: rows in which it may only lower the reward.
        hit_rate: of the rows that it had to answer, the share that its cache knew; None where it
            has no cache, or had to answer none.
    """

    name: str
    role: str
    scores: Floats
    normalised: Floats
    weight: float
    contribution: Floats
    codes: Codes
    words: Codes
    notes: Mapping[int, str]
    extras: Mapping[str, Floats]
    seconds: float
    neutral: Bools
    unsure: Bools
    hit_rate: float | None = None

    @cached_property
    def status(self) -> Words:
        """(B,) of ``ok | not_applicable | abstained | failed``."""
        return STATUSES[self.codes]

    @cached_property
    def severity(self) -> tuple[str, ...]:
        """B of ``none | penalty | veto | skip``."""
        return tuple(SEVERITY[self.words].tolist())

    @cached_property
    def reasons(self) -> tuple[str | None, ...]:
        """B texts or None."""
        return tuple(self.notes.get(row) for row in range(len(self.codes)))


@dataclass(frozen=True, eq=False)
class TableColumns:
    """B rows, scored and fused under one lease. Nothing in it changes.

    Args:
        sample_ids: B strings.
        group_ids: B hashables, or None where each row is a group.
        step: the training step, or None.
        training: False in evaluation and serving.
        revision: of the weights.
        weights: mount -> weight.
        generations: mount -> generation.
        additive: whether the contributions add up to `fused`.
        columns: mount -> column, in config order.
        fused: (B,) float64, NaN where the row is masked or blocked.
        masked: (B,) bool: no loss term, token count or baseline may hold the row.
        skip: (B,) bool: no actor loss term or actor token count may.
        in_baseline: (B,) bool: the row enters its group's baseline.
        blocked: (B,) bool: outside training, a gate had no answer; the row must not be passed.
        gate_words: (B,) int8, `gate_severity` as numbers.
        mask_reason: B texts or None: why a row is masked or blocked.
        penalties: gate -> its penalty, < 0.
        token_parts: what token-level mounts add, for `verl_core.rewards.tokens.place`.
        figures: what the fusion policy has to log.
    """

    sample_ids: Sequence[str]
    group_ids: Sequence[Hashable] | None
    step: int | None
    training: bool
    revision: int
    weights: Mapping[str, float]
    generations: Mapping[str, int]
    additive: bool
    columns: Mapping[str, MountColumn]
    fused: Floats
    masked: Bools
    skip: Bools
    in_baseline: Bools
    blocked: Bools
    gate_words: Codes
    mask_reason: tuple[str | None, ...]
    penalties: Mapping[str, float]
    token_parts: Sequence[TokenPart] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for owner in (self, *self.columns.values()):
            for value in vars(owner).values():
                if type(value) is np.ndarray:
                    value.setflags(write=False)

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def vetoed(self) -> Bools:
        """(B,) bool: rows in which a veto or skip took the place of the sum."""
        rows: Bools = self.gate_words >= VETO
        return rows

    @cached_property
    def gate_severity(self) -> Words:
        """(B,) of ``none | penalty | veto | skip``: the gravest word of all gates."""
        return SEVERITY[self.gate_words]
