"""``verl-reward info NAME``: what one reward does, what it needs, and how a config mounts it."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from verl_core.plugins import PluginRecord, PluginRegistry
from verl_reward_sdk.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from verl_reward_sdk.provider import RewardProvider

_Value = TypeVar("_Value")


def command(
    name: str | None = typer.Argument(
        None, help="A name from `verl-reward list`; with --config a section or key, as rollout.n."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    readme: bool = typer.Option(
        False, "--readme", help="Print the README of the plugin's distribution instead."
    ),
    config: bool = typer.Option(
        False, "--config", help="Show the keys of a run's YAML: all, or a section's, or one."
    ),
) -> None:
    """Show what a plugin does, its settings, and an example; or the keys of a run's YAML.

    The plugin is imported; nothing is loaded or downloaded.
    """
    if config:
        _show_keys(name, as_json)
        return
    if name is None:
        hint = "`verl-reward list` shows the names; --config shows the keys of a run's YAML"
        raise ConfigError("info needs the name of a reward", hint=hint)
    registry = PluginRegistry()
    if readme:
        typer.echo(_readme(registry.check(name)))
        return
    with contextlib.redirect_stdout(sys.stderr):  # a plugin may print while it is imported
        provider = registry.provider(name)
        facts = describe(provider, registry.check(name))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


def _show_keys(wanted: str | None, as_json: bool) -> None:
    from verl_core.cli import reference
    from verl_core.cli.display import console

    found = reference.chosen(wanted)
    if as_json:
        typer.echo(json.dumps([asdict(section) for section in found], indent=2))
    else:
        reference.show(console(), found)


def describe(provider: type[RewardProvider[Any]], record: PluginRecord) -> dict[str, Any]:
    """All that is said of a provider class, as plain JSON values.

    `reads` and `score_range` may depend on the config. They are those of the default config or,
    where it has required keys, of the example's; None where the provider cannot tell from it.
    Unbounded ends of `score_range` are None.
    """
    from verl_core.cli import settings

    schema = settings.json_schema(provider.Config)
    kwargs = settings.example_kwargs(schema)
    instance = _instance(provider, kwargs)
    reads = None if instance is None else _try(lambda: sorted(instance.reads))
    bounds = None if instance is None else _try(lambda: [float(x) for x in instance.score_range])
    return {
        "name": record.name,
        "dist": record.dist,
        "version": record.version,
        "origin": record.origin,
        "api": record.api,
        "description": provider.description,
        "details": inspect.cleandoc(provider.__doc__ or ""),
        "role": provider.role,
        "reads": reads,
        "score_range": bounds and [x if math.isfinite(x) else None for x in bounds],
        "execution": provider.execution,
        "scope": provider.scope,
        "deterministic": provider.deterministic,
        "order_tolerance": provider.order_tolerance,
        "thread_safe": provider.thread_safe,
        "readme": None if (path := readme_path(record.dist)) is None else str(path),
        "settings": [asdict(setting) for setting in settings.settings(schema)],
        "config_schema": schema,
        "example": settings.example_yaml(record.name, provider.role, kwargs),
    }


def readme_path(dist: str) -> Path | None:
    """The README of a distribution that is installed in place (``pip install -e``), else None."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    found = json.loads(distribution(dist).read_text("direct_url.json") or "{}")  # PEP 610
    if not found.get("dir_info", {}).get("editable"):
        return None
    path = Path(url2pathname(urlsplit(found["url"]).path)) / "README.md"
    return path if path.is_file() else None


def _description(dist: str) -> str:
    """What a distribution took along of its README when it was built; may be empty."""
    return str(distribution(dist).metadata.json.get("description") or "").strip()


def _readme(record: PluginRecord) -> str:
    path = readme_path(record.dist)
    text = path.read_text("utf-8") if path is not None else _description(record.dist)
    if not text:
        raise ConfigError(
            f"{record.source} brings no README",
            hint=f"`verl-reward info {record.name}` shows what the plugin says of itself",
        )
    return text


def _instance(
    provider: type[RewardProvider[Any]], kwargs: dict[str, Any]
) -> RewardProvider[Any] | None:
    """The provider with its default config, or with the example's: its paths need not exist."""
    from pydantic import ValidationError

    try:
        config = provider.Config()
    except ValidationError:
        config = provider.Config.model_construct(**kwargs)
    return _try(lambda: provider(config))


def _try(question: Callable[[], _Value]) -> _Value | None:
    """A plugin's answer, or None where it cannot answer about a config that is only an example."""
    from verl_core.plugins.fence import LoadFailure, guarded

    try:
        return guarded(question)
    except LoadFailure:
        return None


def _print(facts: dict[str, Any]) -> None:
    from rich.text import Text

    from verl_core.cli.display import console, prose, settings_table
    from verl_core.cli.settings import Setting

    out = console()
    title = Text(facts["name"], style="bold cyan")
    out.print(title.append(f"  {facts['dist']} {facts['version']}", style="not bold dim"))
    text = facts["details"] or facts["description"]
    for paragraph in text.split("\n\n"):
        out.print()
        out.print(prose(paragraph))
    out.print()
    _print_traits(out, facts)
    out.print()
    if facts["settings"]:
        keys = [Setting(**setting) for setting in facts["settings"]]
        out.print(settings_table(keys, title="Settings (init_kwargs)"))
    else:
        out.print("It has nothing to configure.\n")
    out.print(Text("Example", style="bold"))
    out.print(Text(facts["example"].rstrip(), style="green"), soft_wrap=True)
    if facts["readme"] is not None:
        from verl_core.trainer.near import near

        out.print(Text(f"\nMore: {near(Path(facts['readme']))}", style="dim"), soft_wrap=True)
    elif _description(facts["dist"]):
        more = f"\nMore: `verl-reward info {facts['name']} --readme`"
        out.print(Text(more, style="dim"), soft_wrap=True)


def _print_traits(out: Console, facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    gate = facts["role"] == "gate"
    traits = {
        "role": "gate: stands over the sum" if gate else "reward: weighted and summed",
        "reads": _reads(facts["reads"]),
        "score range": _range(facts["score_range"]),
        "execution": facts["execution"],
        "scope": facts["scope"],
    }
    if facts["order_tolerance"]:
        traits["order tolerance"] = f"{facts['order_tolerance']:g}"
    if not facts["deterministic"]:
        traits["deterministic"] = "no: the same row may score differently"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for key, value in traits.items():
        grid.add_row(key, Text(value))
    out.print(grid)


def _reads(columns: list[str] | None) -> str:
    if columns is None:
        return "depends on its settings"
    return ", ".join(columns) or "the prompt and the response only"


def _range(bounds: list[float | None] | None) -> str:
    if bounds is None:
        return "depends on its settings"
    low, high = bounds
    if low is None and high is None:
        return "unbounded"
    if high is None:
        return f"{low:g} or more"
    return f"{high:g} or less" if low is None else f"{low:g} to {high:g}"
