"""``verl-reward weights``: read and change the weights of a running job over HTTP."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from verl_core.cli.client import DEFAULT_URL, URL_VARIABLE, ControlClient
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
    _show(ControlClient(url).weights(), as_json)


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
    _show(ControlClient(url).change(_parsed(changes), headers), as_json)


@app.command("history")
def history(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="So many, newest first.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show who changed which weight when, and why."""
    found = ControlClient(url).history(limit)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _show_history(found)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name
        return "cli"


def _parsed(changes: Sequence[str]) -> dict[str, float]:
    parsed: dict[str, float] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = None
        if not equals or not name or value is None:
            hint = "write NAME=VALUE, as in accuracy=2"
            raise ConfigError(f"{change!r} does not give a weight", hint=hint)
        if name in parsed:
            raise ConfigError(f"{name!r} is given twice", hint="give each weight once")
        parsed[name] = value
    return parsed


def _show(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from verl_core.cli.display import console

    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("Mount", style="bold cyan", overflow="fold")
    table.add_column("Weight", justify="right")
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
    out.print(f"Run {run}, revision {found['revision']}, at step {found['step']}", highlight=False)
    out.print(table)
    out.print(f"In effect from step {found['effective_step']} on.", highlight=False)


def _show_history(found: Mapping[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from verl_core.cli.display import console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in ("Revision", "From step"):
        table.add_column(heading, justify="right")
    for heading in ("Time (UTC)", "Author", "Change", "Reason"):
        table.add_column(heading, overflow="fold")
    for entry in found["history"]:
        table.add_row(
            str(entry["revision"]),
            str(entry["effective_step"]),
            entry["time"].replace("T", " ").partition(".")[0],
            Text(entry["author"], style="cyan"),
            Text("\n".join(changes_text(entry["before"], entry["after"]))),
            Text(entry["reason"] or ""),
        )
    out = console()
    out.print(Text.assemble("Run ", (found["run_id"], "bold")))
    out.print(table)


def setting_text(setting: float | Mapping[str, Any]) -> str:
    """A weight's setting in words: ``2``, or ``linear 2 → 0.5, steps 0 to 200``."""
    if not isinstance(setting, Mapping):
        return f"{setting:g}"
    ((kind, body),) = setting.items()
    if kind == "linear":
        end = body["start"] + body["steps"]
        return f"linear {body['from']:g} → {body['to']:g}, steps {body['start']} to {end}"
    if kind == "step":
        stairs = "".join(f", {value:g} from step {step}" for step, value in body["at"])
        return f"{body['from']:g}{stairs}"
    return f"{kind} {json.dumps(body)}"


def changes_text(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What a revision changed, a line a mount."""
    if not before:
        return [f"{name} {setting_text(setting)}" for name, setting in after.items()]
    was = {name: setting_text(setting) for name, setting in before.items()}
    lines = [
        f"{name} {was.get(name, 'new')} → {setting_text(setting)}"
        for name, setting in after.items()
        if before.get(name) != setting
    ]
    lines += [f"{name} removed" for name in before if name not in after]
    return lines or ["(the same values)"]
