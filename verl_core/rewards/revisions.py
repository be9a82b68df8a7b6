"""What a revision of the weights holds, and the immutable views of it that readers get."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from verl_core.rewards.schedules import Setting, setting_form, value_at


@dataclass(frozen=True)
class Dial:
    """One weight: what its config gives it, and the live value that is pinned over it, if any."""

    base: Setting
    pin: float | None = None

    @property
    def setting(self) -> Setting:
        return self.base if self.pin is None else self.pin

    def value(self, step: int) -> float:
        return value_at(self.setting, step)


Dials: TypeAlias = "Mapping[str, Dial]"
"""Every weight of a run, in config order."""


@dataclass(frozen=True)
class Record:
    """One revision as it is written."""

    revision: int
    run_id: str
    time: str
    author: str
    reason: str | None
    effective_step: int
    dials: Dials

    def weights(self, step: int) -> dict[str, float]:
        return {name: dial.value(step) for name, dial in self.dials.items()}

    def settings(self) -> dict[str, float | dict[str, Any]]:
        """name -> number or schedule that is in force; the audit log's ``before`` and ``after``."""
        return {name: setting_form(dial.setting) for name, dial in self.dials.items()}


@dataclass(frozen=True)
class WeightSnapshot:
    """The weights of one revision at one step. It never changes.

    Args:
        revision: its number; a higher one is newer, over restarts too.
        step: the step whose scheduled values `weights` shows.
        weights: mount -> weight at `step`, in config order.
        pinned: mounts whose weight was changed live and follows no schedule.
        schedules: mount -> the schedule of its base (also where a pin stands over it).
        author, reason, time: who made this revision, why, and when (ISO 8601, UTC).
        effective_step: the first step that may use it.
    """

    revision: int
    step: int
    weights: Mapping[str, float]
    pinned: tuple[str, ...]
    schedules: Mapping[str, dict[str, Any]]
    author: str
    reason: str | None
    time: str
    effective_step: int

    def __post_init__(self) -> None:
        for name in ("weights", "schedules"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Any, ...]:  # a mapping proxy does not pickle
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        plain = [dict(v) if isinstance(v, MappingProxyType) else v for v in values]
        return WeightSnapshot, tuple(plain)

    def as_dict(self) -> dict[str, Any]:
        """Its fields as JSON-ready values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {
            "weights": dict(self.weights),
            "pinned": list(self.pinned),
            "schedules": dict(self.schedules),
        }


@dataclass(frozen=True)
class WeightChange:
    """One entry of the audit log.

    `before` and `after` give each mount's setting (a number, or the schedule that is in force), so
    that an entry's `before` is its run's previous entry's `after`; `weights` gives the numbers at
    `effective_step`.
    """

    revision: int
    run_id: str
    time: str
    author: str
    reason: str | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    pinned: tuple[str, ...]
    weights: Mapping[str, float]
    effective_step: int

    def as_dict(self) -> dict[str, Any]:
        """Its fields as JSON-ready values."""
        return dataclasses.asdict(self) | {"pinned": list(self.pinned)}


def snapshot_of(record: Record, step: int) -> WeightSnapshot:
    """`record` as its readers see it, with the values of `step`."""
    return WeightSnapshot(
        revision=record.revision,
        step=step,
        weights=record.weights(step),
        pinned=pinned_names(record.dials),
        schedules={
            name: dial.base.as_dict()
            for name, dial in record.dials.items()
            if not isinstance(dial.base, float)
        },
        author=record.author,
        reason=record.reason,
        time=record.time,
        effective_step=record.effective_step,
    )


def pinned_names(dials: Dials) -> tuple[str, ...]:
    """The mounts whose weight is pinned."""
    return tuple(name for name, dial in dials.items() if dial.pin is not None)


def change_of(record: Record, before: Record | None) -> WeightChange:
    """`record` as an entry of the audit log; `before` is the revision that it replaced."""
    return WeightChange(
        revision=record.revision,
        run_id=record.run_id,
        time=record.time,
        author=record.author,
        reason=record.reason,
        before=before.settings() if before else {},
        after=record.settings(),
        pinned=pinned_names(record.dials),
        weights=record.weights(record.effective_step),
        effective_step=record.effective_step,
    )
