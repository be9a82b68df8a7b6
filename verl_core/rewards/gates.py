"""Gates: mounts whose word stands over the sum.

Of several gates the gravest word wins; penalties add up; of vetoes the lowest holds. A veto takes
the lower of its penalty and the fused reward (penalties of other gates included), so that a gate
never raises a reward. `skip` does as `veto` and keeps the row out of the actor's loss.

A veto or skip stands whatever became of the row's other mounts, so that it unmasks a masked row and
unblocks a blocked one; a penalty on a masked row leaves it masked. A gate that failed or abstained
shuts the row (masked in training, blocked elsewhere) unless it is `fail_open`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from verl_core.config.mount import MountConfig
from verl_core.rewards.answer import Answer
from verl_core.rewards.statuses import (
    ABSTAINED,
    FAILED,
    GATE_ABSTAINED,
    GATE_FAILED,
    NONE,
    PENALTY,
    SEVERITY_CODES,
    SKIP,
    VETO,
    Codes,
)
from verl_reward_sdk.protocols import Bools, Floats, Fused


@dataclass
class Verdict:
    """What all gates together say of B rows.

    Args:
        word: (B,) int8: the gravest severity.
        words: gate -> (B,) int8: its own.
        penalties: gate -> its penalty.
        penalty: (B,) float64: the sum of penalties that were given as such.
        veto: (B,) float64: the lowest penalty of a veto or skip, +inf where there is none.
        in_baseline: (B,) bool: no skip keeps the row out of its group's baseline.
        shut: (B,) bool: a gate failed or abstained, and is not `fail_open`.
        shut_reason: (B,) object: `GATE_FAILED`, `GATE_ABSTAINED` or None.
        shut_by: (B,) object: the gate of that reason, the first in config order, or None.
    """

    word: Codes
    penalty: Floats
    veto: Floats
    in_baseline: Bools
    shut: Bools
    shut_reason: npt.NDArray[np.object_]
    shut_by: npt.NDArray[np.object_]
    words: dict[str, Codes] = field(default_factory=dict)
    penalties: dict[str, float] = field(default_factory=dict)

    @property
    def vetoed(self) -> Bools:
        """(B,) bool: rows under a veto or a skip."""
        return self.word >= VETO


def judge(gates: Mapping[str, tuple[MountConfig, Answer]], n: int) -> Verdict:
    """Gather the words of all gates on n rows."""
    verdict = Verdict(
        word=np.zeros(n, dtype=np.int8),
        penalty=np.zeros(n),
        veto=np.full(n, np.inf),
        in_baseline=np.ones(n, dtype=bool),
        shut=np.zeros(n, dtype=bool),
        shut_reason=np.full(n, None, dtype=object),
        shut_by=np.full(n, None, dtype=object),
    )
    for name, (mount, answer) in gates.items():
        word = words_of(mount, answer)
        verdict.words[name] = word
        penalty = verdict.penalties[name] = mount.penalty or 0.0  # the config requires one
        verdict.word = np.maximum(verdict.word, word)
        verdict.penalty += np.where(word == PENALTY, penalty, 0.0)
        verdict.veto = np.where(word >= VETO, np.minimum(verdict.veto, penalty), verdict.veto)
        if not mount.in_baseline:
            verdict.in_baseline &= word != SKIP
        if not mount.fail_open:
            _shut(verdict, name, answer.codes == FAILED, GATE_FAILED)
            _shut(verdict, name, answer.codes == ABSTAINED, GATE_ABSTAINED)
    return verdict


def words_of(mount: MountConfig, answer: Answer) -> Codes:
    """(B,) int8: a gate's own words, by its severity or its threshold, whichever is graver."""
    word = np.zeros(len(answer.codes), dtype=np.int8)
    if answer.words is not None:
        word = np.where(answer.ok, answer.words, NONE).astype(np.int8)
    if mount.threshold is not None:
        low, high = mount.threshold.below, mount.threshold.above
        # NaN, where there is no score, is beyond neither.
        beyond = np.zeros(len(word), dtype=bool) if low is None else answer.scores < low
        if high is not None:
            beyond = beyond | (answer.scores > high)
        word = np.where(beyond, np.maximum(word, SEVERITY_CODES[mount.severity]), word)
    if mount.skip_update:
        word = np.where(word == VETO, SKIP, word)
    return word.astype(np.int8)


@dataclass
class Ruled:
    """The fused reward once the gates have had their word.

    Args:
        values: (B,) float64, NaN where the row is masked or blocked.
        contributions: (B, M) float64 of the rewards, NaN where the row has no fused reward of them.
        gate_contributions: gate -> (B,) float64.
        masked, blocked: (B,) bool, never both.
        reason: (B,) object: why it is one of them, or None.
    """

    values: Floats
    contributions: Floats
    gate_contributions: dict[str, Floats]
    masked: Bools
    blocked: Bools
    reason: npt.NDArray[np.object_]


def rule(
    verdict: Verdict, fused: Fused, unscored: npt.NDArray[np.object_], *, training: bool
) -> Ruled:
    """Let the gates' words stand over the fused reward.

    Args:
        unscored: (B,) object: why the rewards leave a row without a fused reward, or None.
        training: False turns the rows that gates shut from masked into blocked.
    """
    unknown = unscored.astype(bool)
    if not verdict.words and not unknown.any():  # no gates, and nothing is missing
        clear = np.zeros(len(unknown), dtype=bool)
        return Ruled(fused.values.copy(), fused.contributions, {}, clear, clear, unscored)
    vetoed = verdict.vetoed
    before = np.where(unknown, np.nan, fused.values + verdict.penalty)
    values = np.where(vetoed, np.fmin(before, verdict.veto), before)
    dead = (unknown | verdict.shut) & ~vetoed
    values[dead] = np.nan

    silent = dead | unknown
    contributions = fused.contributions
    if silent.any():
        contributions = np.where(silent[:, None], np.nan, contributions)
    taken = np.where(unknown, values, values - before)
    parts: dict[str, Floats] = {}
    uncarried = vetoed
    for name, word in verdict.words.items():
        penalty = verdict.penalties[name]
        # The gate whose veto holds carries it; of equals the first.
        carries = uncarried & (word >= VETO) & (verdict.veto == penalty)
        uncarried = uncarried & ~carries
        part = np.where((word == PENALTY) & ~unknown, penalty, 0.0)
        parts[name] = np.where(dead, np.nan, np.where(carries, taken, part))

    reason = np.where(verdict.shut, verdict.shut_reason, unscored)
    reason[~dead] = None
    blocked = dead & verdict.shut if not training else np.zeros(len(dead), dtype=bool)
    return Ruled(values, contributions, parts, dead & ~blocked, blocked, reason)


def _shut(verdict: Verdict, gate: str, rows: Bools, reason: str) -> None:
    fresh = rows & ~verdict.shut
    verdict.shut_reason[fresh] = reason
    verdict.shut_by[fresh] = gate
    verdict.shut |= rows
