"""What a change of weights may be. Everything that is refused here is refused in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from verl_core.config.names import composed, spelt
from verl_core.rewards.revisions import Dials
from verl_core.rewards.schedules import weight_value
from verl_reward_sdk.errors import VerlRewardError, did_you_mean, nearest

_EVERY_STEP_UP_TO = 10_000
_AUTHOR_LENGTH = 200
_REASON_LENGTH = 2000
_NAMED_AT_MOST = 20

Check: TypeAlias = Callable[[Mapping[str, float]], None]


class WeightError(VerlRewardError):
    """A change of weights that was refused. Nothing was changed.

    Args:
        reasons: what is wrong with each key; the key ``""`` stands for the change as a whole.
        nearest: for unknown names, the known name that was most likely meant.
    """

    def __init__(
        self, reasons: Mapping[str, str], nearest: Mapping[str, str] | None = None
    ) -> None:
        self.reasons = dict(reasons)
        self.nearest = dict(nearest or {})
        super().__init__(
            "; ".join(f"{key}: {why}" if key else why for key, why in self.reasons.items())
        )


class StaleRevision(VerlRewardError):
    """The change was meant for a revision that is no longer the newest. Nothing was changed.

    Args:
        expected: the revisions that would have done; none where none of this store was meant.
        current: the newest.
    """

    def __init__(self, expected: Collection[int], current: int) -> None:
        self.expected = tuple(sorted(expected))
        self.current = current
        names = " or ".join(map(str, self.expected))
        meant = f"revision {names}" if names else "something that is no revision of these weights"
        super().__init__(f"the change was made for {meant}, the newest is {current}")


def check_author(author: str) -> str:
    """`author` as it is kept.

    Raises:
        ValueError: it is empty, too long, or has characters that do not print.
    """
    text = author.strip()
    if not text:
        raise ValueError("an author must be named")
    if len(text) > _AUTHOR_LENGTH or not text.isprintable():
        raise ValueError(f"an author is at most {_AUTHOR_LENGTH} printable characters")
    return text


def check_reason(reason: str | None) -> str | None:
    """`reason` as it is kept; errors as in `check_author`."""
    text = (reason or "").strip()
    if len(text) > _REASON_LENGTH or not text.replace("\n", " ").isprintable():
        raise ValueError(f"a reason is at most {_REASON_LENGTH} printable characters")
    return text or None


@dataclass(frozen=True)
class WeightRules:
    """What this run's weights may be.

    Args:
        gates: names of gates, which have no weight.
        allow_zero: whether all weights may be 0 at once.
        checks: refusals of fusion policies: each raises `VerlRewardError` or `ValueError`.
    """

    gates: frozenset[str] = frozenset()
    allow_zero: bool = False
    checks: tuple[Check, ...] = ()

    def and_also(self, check: Check) -> WeightRules:
        """These rules, and `check`."""
        return dataclasses.replace(self, checks=(*self.checks, check))

    def read(
        self, changes: Mapping[str, object], dials: Dials, *, whole: bool = False
    ) -> dict[str, float]:
        """`changes` as weights; with `whole` they must name every mount.

        Names are taken in their composed form, as the config's are.

        Raises:
            WeightError: with a reason for every key that is wrong (for the first 20 of them).
        """
        if not changes:
            raise WeightError({"": "no weight was given"})
        errors = _Refusals()
        values: dict[str, float] = {}
        for key, value in changes.items():
            if not isinstance(key, str):
                errors.add(str(key)[:60], "a mount's name is a text")
                continue
            name = composed(key)
            if self._known(name, dials, errors):
                number = _number(value)
                if name in values:
                    errors.add(name, f"it is given twice: as {name!a} and {key!a}")
                elif isinstance(number, str):
                    errors.add(name, number)
                else:
                    values[name] = number
            if errors.full:
                break
        for name in dials:
            if whole and name not in values and not errors.has(name):
                errors.add(name, "it is missing")
        errors.raise_if_any()
        return values

    def pinned(self, names: Iterable[str], dials: Dials) -> frozenset[str]:
        """`names`, each of which has a pin.

        Raises:
            WeightError: as in `read`.
        """
        errors = _Refusals()
        wanted = frozenset(map(composed, names))
        for name in sorted(wanted):
            if self._known(name, dials, errors) and dials[name].pin is None:
                errors.add(name, "it is not pinned")
            if errors.full:
                break
        if not wanted:
            errors.add("", "no name was given")
        errors.raise_if_any()
        return wanted

    def _known(self, name: str, dials: Dials, errors: _Refusals) -> bool:
        if name in dials:
            return True
        if name in self.gates:
            errors.add(name, "it is a gate, and a gate has no weight")
        else:
            # A longer name is no slip of a known one, and would be slow to compare.
            hint = did_you_mean(name, dials) if len(name) <= 100 else ""
            match = nearest(name, dials) if len(name) <= 100 else None
            odd = spelt(name) if len(name) <= 100 else ""
            said = f"no mount has this name ({odd})" if odd else "no mount has this name"
            errors.add(name, f"{said}; {hint}".rstrip("; "), match)
        return False

    def judge(self, dials: Dials, step: int) -> None:
        """Refuse settings that cannot serve `step`, or a later one.

        Every step is tried on which the values differ from those of the step before; of a schedule
        that ends more than 10,000 steps ahead, both sides of each of its corners and about 1,000
        steps between (from corner to corner it moves one way).

        Raises:
            WeightError: every weight would be 0, or the policy refuses them.
        """
        last: dict[str, float] | None = None
        for at in _steps_that_differ(dials, step):
            weights = {name: dial.value(at) for name, dial in dials.items()}
            if weights != last:
                why = self._refusal(weights)
                if why:
                    raise WeightError({"": why if at == step else f"at step {at}: {why}"})
            last = weights

    def _refusal(self, weights: Mapping[str, float]) -> str | None:
        if weights and not self.allow_zero and not any(weights.values()):
            return "every weight would be 0 and no reward be left (fusion.allow_zero allows it)"
        for check in self.checks:
            try:
                check(MappingProxyType(weights))
            except (VerlRewardError, ValueError) as error:
                return str(error)
        return None


class _Refusals:
    """Gathers what is wrong with the keys of one change."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._nearest: dict[str, str] = {}

    @property
    def full(self) -> bool:
        return len(self._reasons) >= _NAMED_AT_MOST

    def has(self, name: str) -> bool:
        return name in self._reasons

    def add(self, name: str, reason: str, match: str | None = None) -> None:
        self._reasons[name] = reason
        if match is not None:
            self._nearest[name] = match

    def raise_if_any(self) -> None:
        if self._reasons:
            raise WeightError(self._reasons, self._nearest)


def _number(value: object) -> float | str:
    """`value` as a weight, or what is wrong with it."""
    try:
        return weight_value(value)
    except ValueError as error:
        return str(error)


def _steps_that_differ(dials: Dials, first: int) -> Collection[int]:
    settings = [dial.setting for dial in dials.values()]
    knots = {k for s in settings if not isinstance(s, float) for k in s.knots() if k > first}
    last = max(knots, default=first)
    if last - first <= _EVERY_STEP_UP_TO:
        return range(first, last + 1)
    corners = {step for knot in knots for step in (knot - 1, knot, knot + 1)}
    return sorted({first, *corners, *range(first, last, (last - first) // 1000)})
