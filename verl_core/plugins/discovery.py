"""Installed metadata -> records. Nothing is imported: all is read from ``*.dist-info`` folders."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata

from verl_core.plugins.records import PluginRecord, normalise
from verl_reward_sdk.version import __version__ as sdk_version

DISABLE = "VERL_REWARD_DISABLE_AUTOLOAD"
ALLOW = "VERL_REWARD_PLUGINS"

_SDK = "verl-reward-sdk"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Offer:
    """A record, and the folder its distribution is installed in."""

    record: PluginRecord
    location: str


@dataclass(frozen=True)
class AllowList:
    """Which names the environment lets in. It is asked before anything is imported.

    Either variable closes the list: ``VERL_REWARD_DISABLE_AUTOLOAD=1`` lets in only what
    ``VERL_REWARD_PLUGINS`` names (nothing, where that is empty), and a list that is set keeps out
    what it does not name without the first variable too. An empty value is no list.
    """

    closed: bool
    names: frozenset[str]

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AllowList:
        """Read both variables of `env`."""
        names = frozenset(normalise(part) for part in env.get(ALLOW, "").split(",") if part.strip())
        return cls(bool(names) or is_on(env, DISABLE), names)

    def refusal(self, record: PluginRecord) -> str | None:
        """Why `record` stays out, or None where it may come in."""
        if not self.closed or self.names & {record.name, normalise(record.dist)}:
            return None
        if self.names:
            return f"{ALLOW} lists only {', '.join(sorted(self.names))}"
        return f"{DISABLE} is set, and {ALLOW} lets none in"


def is_on(env: Mapping[str, str], variable: str) -> bool:
    """Whether a switch of the environment is on: anything but empty, 0, false, no, off."""
    return env.get(variable, "").strip().lower() not in {"", "0", "false", "no", "off"}


def discover(group: str, allowed: AllowList) -> tuple[Offer, ...]:
    """Every name that installed distributions offer in `group`, sorted by name, then distribution.

    A distribution that appears twice on ``sys.path`` counts once: the first, which is the one that
    Python would import.
    """
    offers = [offer for dist in _distributions(group) for offer in _offers(dist, group)]
    offers.sort(key=lambda offer: (offer.record.name, offer.record.dist, offer.record.origin))
    return tuple(_mark_conflicts([_judge(offer, allowed) for offer in offers]))


def _distributions(group: str) -> Iterator[metadata.Distribution]:
    found: dict[str, metadata.Distribution] = {}
    for dist in metadata.distributions():
        # The text is searched before it is parsed, and METADATA (slow to parse) read last: an
        # environment holds hundreds of distributions, and few of them are plugins.
        if group in (_read(dist, "entry_points.txt") or ""):
            name = _name(dist)
            if name:
                found.setdefault(normalise(name), dist)
    for dist in found.values():
        try:
            yield metadata.distribution(_name(dist) or "")
        except (metadata.PackageNotFoundError, ValueError):
            yield dist  # its folder goes by another name than its METADATA


def _read(dist: metadata.Distribution, file: str) -> str | None:
    try:
        return dist.read_text(file)
    except (OSError, UnicodeDecodeError):
        return None  # somebody else's damaged distribution must not end every command


def _name(dist: metadata.Distribution) -> str | None:
    if _read(dist, "METADATA") is None and _read(dist, "PKG-INFO") is None:
        return None  # what an interrupted uninstall leaves behind
    return _field(dist, "Name")


def _field(dist: metadata.Distribution, name: str) -> str | None:
    """A field of its METADATA, or None; no Python warns of one that is missing."""
    fields = dist.metadata
    return str(fields[name]).strip() if name in fields else None


def _offers(dist: metadata.Distribution, group: str) -> Iterator[Offer]:
    name, version = _field(dist, "Name") or "unknown", _field(dist, "Version") or "unknown"
    location = str(dist.locate_file(""))
    try:
        entries = [entry for entry in dist.entry_points if entry.group == group]
    except (TypeError, ValueError):  # a line without "=", which importlib.metadata cannot take
        reason = "its entry_points.txt cannot be read"
        record = PluginRecord(normalise(name), "broken", reason, name, version, None, "")
        yield Offer(record, location)
        return
    refusal = _sdk_refusal(_requirements(dist))
    for entry, value in {(normalise(entry.name), entry.value): None for entry in entries}:
        record = PluginRecord(entry, "available", None, name, version, None, value)
        if refusal is not None:
            record = replace(record, state="incompatible", reason=refusal)
        elif not _MODULE.fullmatch(value):
            reason = f"its entry point is {value!r}; it must be the name of a module"
            record = replace(record, state="broken", reason=reason)
        yield Offer(record, location)


def _requirements(dist: metadata.Distribution) -> Sequence[str]:
    try:
        return [str(text) for text in dist.requires or ()]
    except (OSError, UnicodeDecodeError):
        return ()  # as in `_read`


def _sdk_refusal(requirements: Sequence[str]) -> str | None:
    """Why a distribution's own requirements refuse the installed SDK, or None."""
    ours = [
        text
        for text in requirements
        if normalise(re.split(r"[^\w.-]", text.strip(), maxsplit=1)[0]) == _SDK
    ]
    if not ours:
        return None
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement

    for text in ours:
        try:
            requirement = Requirement(text)
            marker = requirement.marker
            applies = marker is None or marker.evaluate({"extra": ""})
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            return f"its requirement {text!r} cannot be read"
        if not applies:
            continue
        if not requirement.specifier.contains(sdk_version, prereleases=True):
            return f"needs {_SDK}{requirement.specifier}, and {sdk_version} is installed"
    return None


def _judge(offer: Offer, allowed: AllowList) -> Offer:
    refusal = allowed.refusal(offer.record)
    if refusal is None:
        return offer
    return replace(offer, record=replace(offer.record, state="disabled", reason=refusal))


def _mark_conflicts(offers: Sequence[Offer]) -> list[Offer]:
    """Set `conflict` on every name that is offered more than once; a disabled offer is none."""
    rivals: dict[str, list[PluginRecord]] = defaultdict(list)
    for offer in offers:
        if offer.record.state != "disabled":
            rivals[offer.record.name].append(offer.record)
    return [
        replace(offer, record=_in_conflict(offer.record, rivals[offer.record.name]))
        if offer.record.state != "disabled" and len(rivals[offer.record.name]) > 1
        else offer
        for offer in offers
    ]


def _in_conflict(record: PluginRecord, rivals: Sequence[PluginRecord]) -> PluginRecord:
    sources = list(dict.fromkeys(rival.source for rival in rivals))
    if len(sources) == 1:
        modules = " and ".join(rival.origin for rival in rivals)
        reason = f"{sources[0]} offers it twice, as {modules}"
    else:
        offered = f"offered by {' and '.join(sources)}"
        reason = f"{offered}; uninstall one, or list in {ALLOW} which plugins to keep"
    return replace(record, state="conflict", reason=reason)
