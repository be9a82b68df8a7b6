"""``verl-reward list``: what is installed, read from metadata alone."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from verl_core.plugins import EXTENSIONS, REWARDS, PluginRecord, PluginRegistry

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    "available": "green",
    "loaded": "bold green",
    "broken": "bold red",
    "conflict": "bold red",
    "incompatible": "yellow",
    "disabled": "dim",
}


def command(
    as_json: bool = typer.Option(False, "--json", help="Print the records as JSON."),
    load: bool = typer.Option(
        False, "--load", help="Import every plugin, to see which of them are broken."
    ),
    extensions: bool = typer.Option(
        False,
        "--extensions",
        help="List extensions (policies, nodes, …) instead of rewards.",
    ),
) -> None:
    """Show the installed reward plugins and their state.

    Nothing is imported unless --load is given. States: available (may be named in a config),
    loaded, broken, incompatible, conflict (two distributions offer the name), disabled (by
    VERL_REWARD_DISABLE_AUTOLOAD and VERL_REWARD_PLUGINS).
    """
    registry = PluginRegistry()
    # A plugin may print while it is imported; stdout is for the list.
    with contextlib.redirect_stdout(sys.stderr):
        records = registry.records(load=load, group=EXTENSIONS if extensions else REWARDS)
    if as_json:
        typer.echo(json.dumps([record.as_dict() for record in records], indent=2))
    else:
        _print(registry, records, extensions)
    error = registry.strict_error()
    if error is not None:
        raise error


def _print(registry: PluginRegistry, records: Sequence[PluginRecord], extensions: bool) -> None:
    from verl_core.cli.display import console

    out = console()
    if records:
        _table(out, records)
        _reasons(out, records)
        example = "`plugins: [NAME]` in a config loads an extension."
        _hint(out, example if extensions else "`verl-reward info NAME` shows what a plugin does.")
    elif extensions:
        out.print("No extension is installed.")
    else:
        _nothing(out)
    for name, near in registry.unknown_names().items():
        meant = f"; did you mean {near!r}?" if near else ""
        out.print(
            f"VERL_REWARD_PLUGINS names {name!r}, which nothing installed has{meant}",
            style="yellow",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    others = () if extensions else registry.records(group=EXTENSIONS)
    if others:
        names = ", ".join(dict.fromkeys(record.name for record in others))
        _hint(out, f"Extensions: {names} (`verl-reward list --extensions`).")


def _table(out: Console, records: Sequence[PluginRecord]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("Name", style="bold cyan", overflow="fold")
    table.add_column("State", no_wrap=True)
    table.add_column("Distribution", overflow="fold")
    table.add_column("Version", overflow="fold")
    for record in records:
        state = Text(record.state, style=STYLES[record.state])
        # As `Text`: what a distribution calls itself is no markup.
        table.add_row(Text(record.name), state, Text(record.dist), Text(record.version))
    out.print(table)


def _reasons(out: Console, records: Sequence[PluginRecord]) -> None:
    """One paragraph for each reason, with all the names that it concerns."""
    from rich.text import Text

    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for record in records:
        if record.reason is not None:
            concerned = names[record.state, record.reason]
            if record.name not in concerned:
                concerned.append(record.name)
    for (state, reason), concerned in names.items():
        head = (f"{', '.join(concerned)} {state}: ", STYLES[state])
        out.print(Text.assemble(head, reason), soft_wrap=not out.is_terminal)
    if names:
        out.print()


def _hint(out: Console, text: str) -> None:
    out.print(text, style="dim", highlight=False, markup=False)


def _nothing(out: Console) -> None:
    from verl_core.plugins import first_party

    width = max(len(first_party.install_command(dist)) for dist in first_party.SHIPPED)
    out.print("No reward plugin is installed. The project's own, from its checkout:\n")
    for dist in first_party.SHIPPED:
        names = ", ".join(first_party.FIRST_PARTY[dist])
        line = f"  {first_party.install_command(dist):<{width}}  # {names}"
        out.print(line, highlight=False, markup=False, soft_wrap=True)
