"""Why rows of a step are masked, counted; and why a step trained on nothing, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from verl_core.rewards import RewardTable
from verl_core.rewards.statuses import ABSTAINED, FAILED, GATE_ABSTAINED, GATE_FAILED
from verl_core.trainer import series

_PREFIX = "reward/masked_by/"
_NO_REWARD = "no_reward"
_WORDS = ("failed", "abstained")


def masked_figures(table: RewardTable, fail_open: Collection[str]) -> dict[str, float]:
    """``reward/masked_by/failed|abstained/<mount>`` and ``reward/masked_by/no_reward``: rows of a
    step that each masked; none that masked no row.

    Args:
        fail_open: gates that let a row through where they have no answer.
    """
    counts: Counter[str] = Counter()
    for row in table.masked.nonzero()[0].tolist():
        counts[_cause(table, row, fail_open)] += 1
    return {f"{_PREFIX}{cause}": float(count) for cause, count in counts.items()}


def _cause(table: RewardTable, row: int, fail_open: Collection[str]) -> str:
    reason = str(table.mask_reason[row])
    for text, word, code in (
        (GATE_FAILED, "failed", FAILED),
        (GATE_ABSTAINED, "abstained", ABSTAINED),
    ):
        if reason != text:
            continue
        for name, column in table.columns.items():
            if column.role == "gate" and name not in fail_open and column.codes[row] == code:
                return f"{word}/{name}"
    mount, _, word = reason.rpartition(" ")
    return f"{word}/{mount}" if mount and word in _WORDS else _NO_REWARD


@dataclass(frozen=True)
class Masked:
    """Rows of one or several steps that were masked.

    Args:
        rows: of these steps that had any masked.
        causes: what masked them -> how many.
    """

    rows: int
    causes: Mapping[str, int]

    def __str__(self) -> str:
        """``8 of 8 rows masked: 8 x failed: tone``."""
        said = ", ".join(f"{count} x {cause}" for cause, count in self.causes.items())
        return f"{sum(self.causes.values())} of {self.rows} rows masked: {said}"


def masked_in(records: Iterable[Mapping[str, Any]]) -> Masked | None:
    """What the figures of steps say of masked rows; None where no step says any."""
    rows, causes = 0, Counter[str]()
    for record in records:
        found = {
            _cause_text(key.removeprefix(_PREFIX)): int(value)
            for key, value in record.items()
            if key.startswith(_PREFIX) and isinstance(value, (int, float)) and _is_cause(key)
        }
        if found and (share := record.get(series.MASKED)):
            causes.update(found)
            rows += round(sum(found.values()) / share)
    return Masked(rows, dict(causes.most_common())) if causes else None


def _is_cause(key: str) -> bool:
    """Not a figure of a mount that is called ``masked_by``."""
    word, _, mount = key.removeprefix(_PREFIX).partition("/")
    return word == _NO_REWARD or (word in _WORDS and bool(mount))


def _cause_text(cause: str) -> str:
    word, _, mount = cause.partition("/")
    return f"{word}: {mount}" if mount else "no mount gave a score"


Idle = Literal["masked", "flat", "other"]


def idle(record: Mapping[str, Any]) -> Idle | None:
    """Why a step trained on nothing, as its figures say: all rows are ``masked``, or all answers to
    a prompt scored alike (``flat``). None where it trained on something."""
    if record.get(series.TRAINED_TOKENS) != 0:
        return None
    share = record.get(series.MASKED) or 0.0
    if share >= 1.0:
        return "masked"
    return "flat" if not share and record.get(series.FLAT_GROUPS) else "other"


def idle_text(record: Mapping[str, Any]) -> str:
    """Why the step of these figures trained on nothing, for its line; empty where it did."""
    why, masked = idle(record), masked_in([record])
    if why is None:
        return ""
    if why == "masked":
        return f"nothing to train on: {masked or 'all rows masked'}"
    if why == "flat":
        return "update none: answers to a prompt scored alike"
    rest = "the rest scored alike" if record.get(series.FLAT_GROUPS) else "too few are left"
    return f"update none: {masked}; {rest}" if masked else "update none"


def idle_steps(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """``{steps, of_steps, why}`` of the steps that trained on nothing; None where there is none."""
    kinds = [(idle(record), record) for record in records]
    found = [record for kind, record in kinds if kind]
    if not found:
        return None
    shut = [record for kind, record in kinds if kind == "masked"]
    flat = sum(kind == "flat" for kind, _ in kinds)
    other = [record for kind, record in kinds if kind == "other"]
    why = []
    if shut:
        why.append(str(masked_in(shut) or "all rows masked"))
    if flat:
        steps = "" if flat == len(found) else f" in {flat} of them"
        why.append(f"answers to a prompt scored alike{steps}")
    if masked := masked_in(other):
        why.append(f"{masked}, and the rest told nothing")
    return {"steps": len(found), "of_steps": len(records), "why": "; ".join(why)}
