"""What a revision of the weights holds, and the immutable views of it that readers get."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from verl_core.rewards.schedules import (
    Setting,
    parse_schedule,
    setting_form,
    value_at,
    weight_value,
)


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


def dials_form(dials: Dials) -> dict[str, Any]:
    """`dials` as JSON-ready values, which `dials_from` reads back."""
    return {name: {"base": setting_form(d.base), "pin": d.pin} for name, d in dials.items()}


def dials_from(form: object) -> dict[str, Dial]:
    """The opposite of `dials_form`.

    Raises:
        ValueError: it holds what is no weight; it names the mount.
    """
    if not isinstance(form, Mapping):
        raise ValueError("its settings are no mapping of mounts")
    dials = {}
    for name, entry in form.items():
        if not isinstance(entry, Mapping) or not {"base", "pin"} <= entry.keys():
            raise ValueError(f"{name!a} has no base and pin")
        try:
            pin = None if entry["pin"] is None else weight_value(entry["pin"])
            dials[str(name)] = Dial(parse_schedule(entry["base"]), pin)
        except ValueError as error:
            raise ValueError(f"{name!a}: {error}") from error
    return dials


@dataclass(frozen=True)
class Record:
    """One revision as it is written. Its fields are checked: they may come from a damaged file.

    Raises:
        ValueError: a field holds what it cannot; it is named.
    """

    revision: int
    run_id: str
    time: str
    author: str
    reason: str | None
    effective_step: int
    dials: Dials

    def __post_init__(self) -> None:
        for name, least in (("revision", 1), ("effective_step", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"its {name} is {value!a:.80}")
        for name in ("run_id", "time", "author"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"its {name} is {getattr(self, name)!a:.80}")
        if self.reason is not None and not isinstance(self.reason, str):
            raise ValueError(f"its reason is {self.reason!a:.80}")

    def as_dict(self) -> dict[str, Any]:
        """Its fields as plain values, which `from_dict` reads back."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"dials": dials_form(self.dials)}

    @classmethod
    def from_dict(cls, values: object) -> Record:
        """The opposite of `as_dict`.

        Raises:
            ValueError: it is no revision.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or values.keys() != names:
            raise ValueError("it holds no revision")
        return cls(**{**values, "dials": dials_from(values["dials"])})

    def weights(self, step: int) -> dict[str, float]:
        return {name: dial.value(step) for name, dial in self.dials.items()}

    def settings(self) -> dict[str, float | dict[str, Any]]:
        """name -> number or schedule that is in force; the audit log's ``before`` and ``after``."""
        return {name: setting_form(dial.setting) for name, dial in self.dials.items()}


@dataclass(frozen=True)
class KeptWeights:
    """What a run that is resumed knows of its weights from elsewhere than their file, which may be
    lost.

    Args:
        step: the last step that was trained: that of its checkpoint.
        revision: the highest that the run is known to have had; 0 where nothing is known.
        record: the newest when the checkpoint was made; None where it kept none.
    """

    step: int
    revision: int
    record: Record | None = None

    def missed(self, newest: Record | None, same: Record | None) -> str | None:
        """What a file of weights lacks that was the run's, in words; None where it lacks nothing.

        Args:
            newest: the run's newest revision in the file.
            same: the run's revision there that has the number of `record`.
        """
        if newest is None:
            return "it holds no revision of this run"
        if newest.revision < self.revision:
            return f"its newest revision is {newest.revision}, and the run had {self.revision}"
        if self.record and same and same.as_dict() != self.record.as_dict():
            return f"its revision {same.revision} is not the one that the run had"
        return None


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
