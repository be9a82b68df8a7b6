"""``verl-reward weights``: read and change the weights of a running job over HTTP."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from verl_core.control.client import DEFAULT_URL, URL_VARIABLE, ControlClient
from verl_reward_sdk.errors import ConfigError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Read and change the weights of a running job.",
)

Url = Annotated[str, typer.Option("--url", envvar=URL_VARIABLE, help="The run's control plane.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the server's answer.")]


@app.command("get")
def get(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the weights, their pins and schedules."""
    client = ControlClient(url)
    if as_json:
        _print_json(client.weights())
        return
    found = client.weights()
    _show(found, client.health())


@app.command("set")
def set_(
    changes: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Such as accuracy=2 tone=0.5.")
    ],
    reason: Annotated[str | None, typer.Option(help="Why; kept in the audit log.")] = None,
    author: Annotated[str | None, typer.Option(help="By default the user of this shell.")] = None,
    if_revision: Annotated[
        int | None, typer.Option(help="Only while this revision is the newest.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change weights: all that are named, or none. Takes effect with the next step."""
    headers = {"X-Verl-Author": quote(author or _user())}
    if reason:
        headers["X-Verl-Reason"] = quote(reason)
    if if_revision is not None:
        headers["If-Match"] = f'"{if_revision}"'
    parsed, client = _parsed(changes), ControlClient(url)
    if as_json:
        _print_json(client.change(parsed, headers))
        return
    before, health = client.weights(), client.health()
    after = client.change(parsed, headers)
    _show(after, health)
    if _same(before, after):
        typer.echo(
            f"Nothing is different: these values were pinned already. The request is noted in the"
            f" audit log as revision {after['revision']}."
        )


@app.command("history")
def history(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="So many, newest first.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show who changed which weight when, and why."""
    found = ControlClient(url).history(limit)
    if as_json:
        _print_json(found)
    else:
        _show_history(found)


def _print_json(found: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name
        return "cli"


def _parsed(changes: Sequence[str]) -> dict[str, float]:
    """The numbers by name; an error tells all that give none."""
    parsed: dict[str, float] = {}
    wrong: list[str] = []
    for change in changes:
        name, equals, text = change.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = None
        if not equals or not name or value is None:
            wrong.append(f"{change!r} does not give a weight")
        elif name in parsed:
            wrong.append(f"{name!r} is given twice")
        else:
            parsed[name] = value
    if wrong:
        hint = "write NAME=VALUE, each name once, as in accuracy=2"
        raise ConfigError("\n".join(wrong), hint=hint)
    return parsed


def _same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the change from `before` to `after` changed nothing, and nobody else came between."""
    alone = after["revision"] == before["revision"] + 1
    return alone and all(before[key] == after[key] for key in ("weights", "pinned"))


def _show(found: Mapping[str, Any], health: Mapping[str, Any]) -> None:
    """Print an answer's weights.

    Args:
        found: of `ControlClient.weights` or `ControlClient.change`.
        health: of `ControlClient.health`, for how far the run has come.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from verl_core.cli.display import console
    from verl_core.trainer.weight_text import setting_text

    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("Mount", style="bold cyan", overflow="fold")
    # Schedules move: these are the values of one step, which may be one that is still to come.
    table.add_column(f"Weight at step {found['step']}", justify="right")
    table.add_column("", overflow="fold")
    for name, weight in found["weights"].items():
        schedule = found["schedules"].get(name)
        notes = []
        if name in found["pinned"]:
            notes.append("[yellow]pinned[/]" + (" over" if schedule else ""))
        if schedule:
            notes.append(escape(setting_text(schedule)))
        table.add_row(escape(name), f"{weight:g}", " ".join(notes))
    run = f"[bold]{escape(found['run_id'])}[/]"
    done = f", {health['step']} of {health['steps']} steps trained" if "steps" in health else ""
    out.print(f"Run {run}{done}", highlight=False)
    out.print(table)
    since = f"Revision {found['revision']}, in effect from step {found['effective_step']} on."
    out.print(since, highlight=False)


def _show_history(found: Mapping[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from verl_core.cli.display import console
    from verl_core.trainer.weight_text import change_texts

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in ("Revision", "From step"):
        table.add_column(heading, justify="right")
    for heading, least in (("Time (UTC)", 10), ("Author", 6), ("Change", 12), ("Reason", 10)):
        table.add_column(heading, overflow="fold", min_width=least)
    for entry in found["history"]:
        table.add_row(
            str(entry["revision"]),
            str(entry["effective_step"]),
            entry["time"].replace("T", " ").partition(".")[0],
            Text(entry["author"], style="cyan"),
            Text("\n".join(change_texts(entry["before"], entry["after"])) or "(the same values)"),
            Text(entry["reason"] or ""),
        )
    out = console()
    out.print(Text.assemble("Run ", (found["run_id"], "bold")))
    out.print(table)
