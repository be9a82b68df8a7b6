"""What was in force when, and which answers of a soak do not go with it.

Nobody knows the moment at which a change took effect, but that it lies between the change's request
and its answer. So an answer may show what was in force at any moment between its own request and
itself: a version that began before the answer came, and whose successor had not surely begun when
the request was sent. Times are `time.monotonic`'s.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

#: Seconds after which a `background` mount must have taken a file that was replaced.
LATE = 30.0
FOREVER = float("inf")


class Timeline:
    """The versions of one thing, in order, each with the moments between which it began."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self._begun: list[tuple[float, float]] = []

    def add(self, version: int, sent: float, done: float) -> None:
        """`version` began between two moments, after all that were added."""
        self.versions.append(version)
        self._begun.append((sent, done))

    def newest(self, modulo: int, rest: int, answered: float) -> int:
        """The last version before a moment that has this rest; -1 where there is none."""
        pairs = zip(self.versions, self._begun, strict=True)
        found = [v for v, (sent, _) in pairs if v % modulo == rest and sent <= answered]
        return found[-1] if found else -1

    def age(self, version: int, sent: float, answered: float) -> float | None:
        """Seconds for which a version that an answer shows had surely been replaced when the
        request was sent; 0 where it may have been in force; None: it had not begun, or is none."""
        at = bisect.bisect_left(self.versions, version)
        if at == len(self.versions) or self.versions[at] != version:
            return None
        if self._begun[at][0] > answered:
            return None
        after = self._begun[at + 1][1] if at + 1 < len(self.versions) else FOREVER
        return max(0.0, sent - after)


@dataclass(frozen=True)
class Shown:
    """What one answer shows.

    Args:
        sent, answered: when.
        lease: the id of the lease that it was scored under, or None.
        revision: of the weights.
        weights: the numbers.
        versions: asset -> the version of its file that the scores tell.
    """

    sent: float
    answered: float
    lease: str | None
    revision: int
    weights: Mapping[str, float]
    versions: Mapping[str, int]


@dataclass
class Change:
    """One change of the weights.

    Args:
        number: its own, which stands in its reason.
        sent, answered: when; `answered` is None where the connection ended first.
        weights: what it asks for.
        revision: what it became, where that is known.
    """

    number: int
    sent: float
    answered: float | None
    weights: Mapping[str, float]
    revision: int | None = None

    @property
    def reason(self) -> str:
        return f"change {self.number}"


@dataclass
class Ledger:
    """All that a soak has seen.

    Attributes:
        answers: scored ones, in the order in which they came.
        changes: of the weights, in the order in which they were asked for, one after the other.
        leases: id -> when it was asked for, and when that was answered.
        files: asset -> its versions.
        kills: ``(before, after)`` of each killed worker: it was gone at `after`.
        repairs: ``(killed, ready)``: between them a worker was missing.
        lost: ``(what, sent, ended)`` of requests whose connection ended.
        ended: ``(lease given, 410 at, what it said)``.
        wrong: what was wrong as soon as it was seen.
    """

    answers: list[Shown] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    leases: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    files: dict[str, Timeline] = field(default_factory=dict)
    kills: list[tuple[float, float]] = field(default_factory=list)
    repairs: list[tuple[float, float]] = field(default_factory=list)
    lost: list[tuple[str, float, float]] = field(default_factory=list)
    ended: list[tuple[float, float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    #: Seconds that a `background` file was behind, of each answer that was.
    behind: list[float] = field(default_factory=list)

    def settle(self, asset: str, modulo: int) -> None:
        """Of an asset whose answers tell the rest of the version only: find the version."""
        for at, shown in enumerate(self.answers):
            version = self.files[asset].newest(modulo, shown.versions[asset], shown.answered)
            versions = {**shown.versions, asset: version}
            self.answers[at] = replace(shown, versions=versions)

    def violations(self, history: Sequence[Mapping[str, Any]], blocking: set[str]) -> list[str]:
        """Everything that must not have been.

        Args:
            history: the audit log, oldest first.
            blocking: assets of mounts with ``reload: blocking``.
        """
        revisions, weights, wrong = self._audit(history)
        for shown in self.answers:
            wrong += self._wrong_revision(shown, revisions, weights)
            if shown.lease is None:
                wrong += self._wrong_files(shown, blocking)
        wrong += self._wrong_leases(blocking)
        wrong += [
            f"{what} was lost at {ended:.3f}, when no worker was killed"
            for what, sent, ended in self.lost
            if not any(sent <= gone and ended >= before for before, gone in self.kills)
        ]
        wrong += [
            f"a lease of {given:.1f} ended at {at:.1f}, though no worker was started between: {why}"
            for given, at, why in self.ended
            if not any(killed <= at and ready >= given for killed, ready in self.repairs)
        ]
        return [*self.wrong, *wrong]

    # -- inside ------------------------------------------------------------------------------------

    def _audit(
        self, history: Sequence[Mapping[str, Any]]
    ) -> tuple[Timeline, dict[int, Mapping[str, float]], list[str]]:
        """The revisions as the audit log has them, and what is missing or doubled in it."""
        revisions, wrong = Timeline(), []
        numbers = [entry["revision"] for entry in history]
        if numbers != list(range(1, len(numbers) + 1)):
            wrong.append(f"the revisions of the audit log are not 1, 2, 3 …: {numbers}")
        for older, newer in pairwise(history):
            if newer["before"] != older["after"]:
                wrong.append(f"revision {newer['revision']} does not begin where the last ended")
        stands: dict[str, list[Mapping[str, Any]]] = {}
        for entry in history:
            stands.setdefault(entry["reason"], []).append(entry)
        revisions.add(1, -FOREVER, -FOREVER)
        accepted = 0
        for change in self.changes:
            found = stands.get(change.reason, [])
            if len(found) > 1 or (change.revision is not None and not found):
                wrong.append(f"{change.reason} stands {len(found)} times in the audit log")
            if not found:
                continue
            accepted += 1
            revision = found[0]["revision"]
            if change.revision not in (None, revision):
                wrong.append(f"{change.reason} was revision {change.revision}, not {revision}")
            if revisions.versions[-1] >= revision:
                wrong.append(f"{change.reason} does not stand after the one before it")
            if any(found[0]["after"][name] != value for name, value in change.weights.items()):
                wrong.append(f"{change.reason} has other weights in the audit log")
            revisions.add(revision, change.sent, change.answered or FOREVER)
        if accepted + 1 != len(history):
            wrong.append(f"{len(history)} entries stand for {accepted} changes and the config")
        return revisions, {entry["revision"]: entry["after"] for entry in history}, wrong

    def _wrong_revision(
        self, shown: Shown, revisions: Timeline, weights: Mapping[int, Mapping[str, float]]
    ) -> list[str]:
        sent, answered = shown.sent, shown.answered
        if shown.lease is not None:
            sent, answered, revision = self.leases[shown.lease]
            if shown.revision != revision:
                return [f"revision {shown.revision} under a lease of revision {revision}"]
        wrong = []
        if revisions.age(shown.revision, sent, answered) != 0.0:
            wrong.append(f"revision {shown.revision} at {sent:.3f} to {answered:.3f}")
        if shown.weights != weights.get(shown.revision):
            wrong.append(f"revision {shown.revision} with the weights {dict(shown.weights)}")
        return wrong

    def _wrong_files(self, shown: Shown, blocking: set[str]) -> list[str]:
        wrong = []
        for asset, version in shown.versions.items():
            age = self.files[asset].age(version, shown.sent, shown.answered)
            if age is not None and asset not in blocking:
                self.behind.append(age)
            if age is None or age > (0.0 if asset in blocking else LATE):
                what = "not in force yet" if age is None else f"replaced {age:.3f} s before"
                wrong.append(f"{asset} version {version}, {what}, at {shown.sent:.3f}")
        return wrong

    def _wrong_leases(self, blocking: set[str]) -> list[str]:
        """All answers under one lease show one version of every file, that of its beginning."""
        wrong, met = [], dict[str, Shown]()
        for shown in self.answers:
            if shown.lease is None:
                continue
            first = met.setdefault(shown.lease, shown)
            if first.versions != shown.versions:
                wrong.append(
                    f"lease {shown.lease}: {dict(first.versions)}, then {dict(shown.versions)}"
                )
        for lease, shown in met.items():
            sent, answered, _ = self.leases[lease]
            begun = Shown(sent, answered, None, shown.revision, shown.weights, shown.versions)
            wrong += [f"lease {lease}: {what}" for what in self._wrong_files(begun, blocking)]
        return wrong
