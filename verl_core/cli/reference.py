"""Every key of a run's YAML, from the models that read it: ``verl-reward info --config`` and, by
``python -m verl_core.cli.reference > docs/config.md``, the page of that name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from verl_core.cli.settings import Setting, json_schema, settings
from verl_reward_sdk.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

#: The section of the keys that stand in none.
TOP = "run"

#: Keys that the loader or a validator fills in, so that nobody needs to write them.
_FILLED = {TOP: ("name", "base_dir"), "reward": ("name", "type")}

_INTRODUCTION = """\
# The keys of a run's YAML

Made from the models that read them, as is `verl-reward info --config`, by
`python -m verl_core.cli.reference > docs/config.md`. `required` stands where a key has no default.
On the command line a key is written with its section, `rollout.n=4`, and a mount by its name,
`reward.tone.weight=2`.
"""


@dataclass(frozen=True)
class Section:
    """One mapping of the YAML.

    Args:
        name: its key, such as ``rollout``; `TOP` for the keys that stand in none.
        text: what it is.
        keys: dotted below the section; `default` is None where a key is required.
    """

    name: str
    text: str
    keys: tuple[Setting, ...]


def sections() -> list[Section]:
    """All of them, in the order of `RunConfig`."""
    from verl_core.config.dataflow import NodeConfig
    from verl_core.config.mount import MountConfig
    from verl_core.config.run import RunConfig

    schema = settings(json_schema(RunConfig))
    below = {setting.key.partition(".")[0] for setting in schema if "." in setting.key}
    top, found = [], []
    for setting in schema:
        name = setting.key
        if "." in name:
            continue
        top.append(_outline(setting) if name in {*below, "reward", "dataflow"} else setting)
        text = setting.description
        if name == "reward":
            found.append(_section(name, f"{text} The keys of a mount:", _keys(MountConfig)))
        elif name == "eval_reward":
            keys = [
                key for key in schema if key.key in ("eval_reward.reward", "eval_reward.fusion")
            ]
            found.append(_section(name, text, [_outline(_below(key)) for key in keys]))
        elif name == "dataflow":
            nodes = "Stage -> a list of names, or of nodes of one's own, whose keys are:"
            found.append(_section(name, f"{text} {nodes}", _keys(NodeConfig)))
        elif name in below:
            keys = [_below(key) for key in schema if key.key.startswith(f"{name}.")]
            found.append(_section(name, text, [*keys, *(_policies() if name == "fusion" else ())]))
    return [_section(TOP, "The keys that stand in no section, and the sections.", top), *found]


def chosen(wanted: str | None) -> list[Section]:
    """The section, or the one key (``rollout.n``, ``reward.tone.weight``), that is `wanted`.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    found = sections()
    if wanted is None:
        return found
    name, _, key = wanted.partition(".")
    by_name = {section.name: section for section in found}
    if name not in by_name and not key:  # a key of the top, such as seed
        name, key = TOP, name
    section = by_name.get(name)
    if section is not None and not key:
        return [section]
    keys = [] if section is None else _matching(section, key)
    if section is None or not keys:
        known = [*by_name, *(f"{one.name}.{key.key}" for one in found for key in one.keys)]
        known += [key.key for key in by_name[TOP].keys]
        hint = did_you_mean(wanted, known) or "`verl-reward info --config` shows all"
        raise ConfigError(f"a run's YAML has no section or key {wanted!r}", hint=hint)
    return [replace(section, keys=tuple(keys))]


def markdown(found: Iterable[Section]) -> str:
    """The page."""
    parts = [_INTRODUCTION]
    for section in found:
        heading = "Outside the sections" if section.name == TOP else f"`{section.name}:`"
        rows = ["| key | type | default | |", "|---|---|---|---|"]
        for key in section.keys:
            cells = (f"`{key.key}`", key.type, _default(key), _code(key.description))
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        parts.append("\n".join([f"## {heading}", "", _code(section.text), "", *rows, ""]))
    return "\n".join(parts)


def show(out: Console, found: Sequence[Section]) -> None:
    """Print them as tables; a single key with all that is said of it."""
    from rich.text import Text

    from verl_core.cli.display import prose, settings_table

    for section in found:
        title = "outside the sections" if section.name == TOP else f"{section.name}:"
        out.print(Text(title, style="bold cyan"))
        out.print(prose(section.text))
        out.print(settings_table(section.keys))


def _section(name: str, text: str, keys: Iterable[Setting]) -> Section:
    filled = _FILLED.get(name, ())
    return Section(
        name, text, tuple(replace(k, default="–") if k.key in filled else k for k in keys)
    )


def _keys(model: type[BaseModel]) -> list[Setting]:
    """The model's keys; a default that is made anew each time, which no schema tells, is empty."""
    return [
        replace(key, default="{}") if key.default == "null" and key.type == "mapping" else key
        for key in settings(json_schema(model))
    ]


def _below(setting: Setting) -> Setting:
    return replace(setting, key=setting.key.partition(".")[2])


def _outline(setting: Setting) -> Setting:
    """A section among the keys above it: its own keys say what the defaults are."""
    return replace(
        setting, default="–" if setting.default not in (None, "null") else setting.default
    )


def _policies() -> Iterable[Setting]:
    """The options of the fusion policies of this project."""
    from verl_core.rewards.fusion import POLICIES

    for name, policy in POLICIES.items():
        model: type[BaseModel] | None = getattr(policy, "Config", None)
        for key in () if model is None else _keys(model):
            yield replace(key, description=f"With ``policy: {name}``. {key.description}")


def _matching(section: Section, key: str) -> list[Setting]:
    """The keys that `key` names: itself and those below it; a mount's name may stand before it."""
    names = [key]
    if section.name in ("reward", "dataflow") and "." in key:
        names.append(key.partition(".")[2])
    for name in names:
        found = [k for k in section.keys if k.key == name or k.key.startswith(f"{name}.")]
        if found:
            return found
    return []


def _code(text: str) -> str:
    return inspect.cleandoc(text).replace("``", "`")


def _default(key: Setting) -> str:
    if key.default is None:
        return "required"
    return "–" if key.default == "–" else f"`{key.default}`"


if __name__ == "__main__":
    sys.stdout.write(markdown(sections()))
