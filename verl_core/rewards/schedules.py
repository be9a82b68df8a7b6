"""How a weight moves over the steps of a run: `Linear`, `Cosine`, `Step`, or a plain number.

A schedule is a pure function of the step, so that a resumed run finds the same values again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from verl_core.config.limits import MAX_WEIGHT
from verl_reward_sdk.errors import did_you_mean


@runtime_checkable
class Schedule(Protocol):
    """A weight as a function of the step."""

    def value(self, step: int) -> float:
        """The weight at `step` (>= 0): from 0 to `MAX_WEIGHT`."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """The form that is written in YAML and read by `parse_schedule`."""
        ...

    def knots(self) -> Sequence[int]:
        """The steps, ascending, between which the value stays or moves one way."""
        ...


Setting: TypeAlias = "float | Schedule"
"""What a weight is set to: a number, or a schedule."""


def weight_value(value: object) -> float:
    """`value` as a weight.

    Raises:
        ValueError: it is no number (a boolean is none), not finite, or outside 0 to `MAX_WEIGHT`.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{_kind(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond 1.8e308
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    if number < 0:
        raise ValueError(f"{number:g} is below 0")
    if number > MAX_WEIGHT:
        raise ValueError(f"{number!r} is above {MAX_WEIGHT:.0f}, the largest weight")
    return number + 0.0  # -0.0 becomes 0.0


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the string {value[:40]!r}"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
    return f"a {type(value).__name__}"


def _step_value(value: object, what: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{what} must be a whole number, not {_kind(value)}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    return int(value)


def _weight(value: object, what: str) -> float:
    try:
        return weight_value(value)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


@dataclass(frozen=True)
class Linear:
    """A straight line from `first` at step `start` to `last` at step `start + steps`, then level.

    YAML: ``{linear: {from: 2.0, to: 0.5, steps: 200, start: 0}}``.
    """

    kind: ClassVar[str] = "linear"
    first: float
    last: float
    steps: int
    start: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", _weight(self.first, "from"))
        object.__setattr__(self, "last", _weight(self.last, "to"))
        object.__setattr__(self, "steps", _step_value(self.steps, "steps", 1))
        object.__setattr__(self, "start", _step_value(self.start, "start", 0))

    def value(self, step: int) -> float:
        done = step - self.start
        if done <= 0:
            return self.first
        if done >= self.steps:
            return self.last
        return _between(self.first, self.last, done / self.steps)

    def as_dict(self) -> dict[str, Any]:
        body = {"from": self.first, "to": self.last, "steps": self.steps, "start": self.start}
        return {self.kind: body}

    def knots(self) -> Sequence[int]:
        return (self.start, self.start + self.steps)


def _between(first: float, last: float, share: float) -> float:
    """The value at `share` of the way. A convex combination: never outside [first, last], which
    first + share * (last - first) can be by a rounding."""
    value = first * (1.0 - share) + last * share
    return min(max(value, min(first, last)), max(first, last))


@dataclass(frozen=True)
class Cosine(Linear):
    """Half a wave of the cosine from `first` at step `start` to `last` at step `start + steps`: it
    leaves the one and reaches the other slowly. Level before and after.

    YAML: ``{cosine: {from: 2.0, to: 0.5, steps: 200, start: 0}}``.
    """

    kind: ClassVar[str] = "cosine"

    def value(self, step: int) -> float:
        done = step - self.start
        if done <= 0:
            return self.first
        if done >= self.steps:
            return self.last
        return _between(self.first, self.last, 0.5 * (1.0 - math.cos(math.pi * done / self.steps)))


@dataclass(frozen=True)
class Step:
    """`first` until the first of `at` is reached; from each ``(step, value)`` on, that value.

    YAML: ``{step: {from: 1.0, at: [[100, 0.5], [200, 0.0]]}}``.
    """

    first: float
    at: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", _weight(self.first, "from"))
        if isinstance(self.at, str | Mapping) or not isinstance(self.at, Iterable):
            raise ValueError(f"at must be a list of [step, value], not {_kind(self.at)}")
        pairs: list[tuple[int, float]] = []
        for index, pair in enumerate(self.at):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise ValueError(f"at[{index}] must be [step, value]")
            step = _step_value(pair[0], f"at[{index}]: step", 0)
            if pairs and step <= pairs[-1][0]:
                raise ValueError(f"at[{index}]: step {step} does not come after {pairs[-1][0]}")
            pairs.append((step, _weight(pair[1], f"at[{index}]")))
        if not pairs:
            raise ValueError("at must name at least one [step, value]")
        object.__setattr__(self, "at", tuple(pairs))

    def value(self, step: int) -> float:
        passed = bisect_right([at for at, _ in self.at], step)
        return self.at[passed - 1][1] if passed else self.first

    def as_dict(self) -> dict[str, Any]:
        return {"step": {"from": self.first, "at": [list(pair) for pair in self.at]}}

    def knots(self) -> Sequence[int]:
        return tuple(step for step, _ in self.at)


def _linear(body: Mapping[str, Any]) -> Linear:
    return Linear(body["from"], body["to"], body["steps"], body.get("start", 0))


def _cosine(body: Mapping[str, Any]) -> Cosine:
    return Cosine(body["from"], body["to"], body["steps"], body.get("start", 0))


def _step(body: Mapping[str, Any]) -> Step:
    return Step(body["from"], body["at"])


# kind -> (builder, required keys, further keys)
_KINDS: Mapping[str, tuple[Callable[[Mapping[str, Any]], Schedule], set[str], set[str]]] = {
    "linear": (_linear, {"from", "to", "steps"}, {"start"}),
    "cosine": (_cosine, {"from", "to", "steps"}, {"start"}),
    "step": (_step, {"from", "at"}, set()),
}


def parse_schedule(obj: object) -> Setting:
    """A setting from its YAML or JSON form: a number, ``{linear: {…}}``, ``{cosine: {…}}`` or
    ``{step: {…}}``.

    Raises:
        ValueError: what is wrong with it, in words that fit behind the weight's name.
    """
    if not isinstance(obj, Mapping):
        is_number = isinstance(obj, Real)  # tried first: a runtime Protocol is slow to compare with
        return weight_value(obj) if is_number or not isinstance(obj, Schedule) else obj
    if len(obj) != 1:
        raise ValueError(f"a schedule has one key, one of {', '.join(_KINDS)}")
    kind, body = next(iter(obj.items()))
    if kind not in _KINDS:
        raise ValueError(f"unknown schedule {kind!r}: {did_you_mean(str(kind), _KINDS)}")
    build, required, optional = _KINDS[kind]
    if not isinstance(body, Mapping):
        raise ValueError(f"{kind}: expected the keys {', '.join(sorted(required | optional))}")
    for key in body:
        if key not in required | optional:
            hint = did_you_mean(str(key), required | optional)
            raise ValueError(f"{kind}: unknown key {key!r}: {hint}")
    for key in sorted(required):
        if key not in body:
            raise ValueError(f"{kind}: {key!r} is missing")
    try:
        return build(body)
    except ValueError as error:
        raise ValueError(f"{kind}: {error}") from None


def value_at(setting: Setting, step: int) -> float:
    """The weight that `setting` gives at `step`."""
    return setting if isinstance(setting, float) else setting.value(step)


def setting_form(setting: Setting) -> float | dict[str, Any]:
    """The form of `setting` that `parse_schedule` reads back."""
    return setting if isinstance(setting, float) else setting.as_dict()
