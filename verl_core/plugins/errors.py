"""What is said of a plugin that cannot be used: what was found, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from verl_core.plugins import first_party
from verl_core.plugins.records import PluginRecord, normalise
from verl_reward_sdk.errors import PluginError, did_you_mean, nearest

_NEXT = {
    "broken": "repair or uninstall {dist}",
    "incompatible": "install the version of {dist} that is made for this one",
}


def state(record: PluginRecord) -> str:
    """``broken: ImportError: …``, to stand after the plugin's name."""
    word = "in conflict" if record.state == "conflict" else record.state
    return f"{word}: {record.reason}"


def refused(record: PluginRecord) -> PluginError:
    """The error of a plugin that is installed and may not be loaded."""
    hint = _NEXT.get(record.state, "").format(dist=record.dist)
    return PluginError(f"plugin {record.name!r} ({record.source}) is {state(record)}", hint=hint)


def missing_extension(name: str, extensions: Sequence[PluginRecord]) -> PluginError:
    """The error of an extension that is not installed."""
    hint = did_you_mean(name, [record.name for record in extensions])
    return PluginError(
        f"no extension {name!r} is installed",
        hint=hint or "`verl-reward list --extensions` shows those that are",
    )


def missing_reward(
    name: str, rewards: Sequence[PluginRecord], extensions: Sequence[PluginRecord]
) -> PluginError:
    """The error of a reward that is not installed.

    It names the first-party distribution that brings it, or the nearest installed or first-party
    reward; never a distribution that is only guessed.
    """
    message = f"no plugin {name!r} is installed"
    dists = [record.dist for record in rewards]
    advice = first_party.advice(name, dists)
    if advice is not None:
        return PluginError(message, hint=advice)
    if normalise(name) in [record.name for record in extensions]:
        message = f"{name!r} is an extension, not a reward"
        return PluginError(message, hint=f"load it with plugins: [{name}]")
    names = [record.name for record in rewards]
    match = nearest(name, [*names, *first_party.names()])
    if match is not None and match not in names:
        hint = f"did you mean {match!r}? {first_party.advice(match, dists)}"
    else:
        hint = did_you_mean(name, names) or "`verl-reward list` shows those that are"
    return PluginError(message, hint=hint)
