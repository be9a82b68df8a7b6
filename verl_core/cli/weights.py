"""``verl-reward weights``: read and change the weights of a running job over HTTP."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Mapping, Sequence
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
Reason = Annotated[str | None, typer.Option(help="Why; kept in the audit log.")]
Author = Annotated[str | None, typer.Option(help="By default the user of this shell.")]
IfRevision = Annotated[
    int | None, typer.Option(metavar="REVISION", help="Only while this one is the newest.")
]
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
    reason: Reason = None,
    author: Author = None,
    if_revision: IfRevision = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change weights: all that are named, or none; the others stay.

    It takes effect with the next step. A weight that is set is pinned: it follows its schedule no
    more, until `unpin`.

    Example: verl-reward weights set accuracy=2 --reason "too many wrong answers"
    """
    headers = _headers(author, reason, if_revision)
    parsed, client = _parsed(changes), ControlClient(url)
    _change(client, lambda: client.change(parsed, headers), as_json)


@app.command("put")
def put(
    weights: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|NAME=VALUE...",
            help="Every weight of the run: a JSON or YAML file of NAME: VALUE, - for standard"
            " input, or the pairs themselves.",
        ),
    ],
    reason: Reason = None,
    author: Author = None,
    if_revision: IfRevision = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Replace all weights at once: every mount must be named, and all are pinned.

    For weights that are kept in a file: one that is missing in it, or unknown to the run, is
    refused with its name. Without --if-revision they replace what is the newest now; name the
    revision that you looked at, and nobody's change is lost.

    Example: verl-reward weights put weights.yaml --if-revision 7
    """
    whole, client = _whole(weights), ControlClient(url)
    newest = client.weights()["revision"] if if_revision is None else if_revision
    headers = _headers(author, reason, newest)
    _change(client, lambda: client.replace(whole, headers), as_json)


@app.command("rollback")
def rollback(
    revision: Annotated[
        int, typer.Argument(metavar="REVISION", min=1, help="As `weights history` numbers them.")
    ],
    reason: Reason = None,
    author: Author = None,
    if_revision: IfRevision = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Go back to the weights of an old revision, its pins and schedules included.

    Nothing is erased: it is a new revision. Takes effect with the next step.

    Example: verl-reward weights rollback 3 --reason "the tone got worse"
    """
    headers, client = _headers(author, reason, if_revision), ControlClient(url)
    _change(client, lambda: client.rollback(revision, headers), as_json)


@app.command("unpin")
def unpin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a weight that is pinned.")],
    reason: Reason = None,
    author: Author = None,
    if_revision: IfRevision = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Let a weight return to the number or schedule of the run's config.

    `weights get` shows which are pinned. Takes effect with the next step.

    Example: verl-reward weights unpin tone
    """
    headers, client = _headers(author, reason, if_revision), ControlClient(url)
    _change(client, lambda: client.unpin(name, headers), as_json)


@app.command("watch")
def watch_(
    since: Annotated[
        int | None,
        typer.Option(min=0, metavar="REVISION", help="Show first what came after this one."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the weights, one line of JSON a change.")
    ] = False,
) -> None:
    """Show each change as it is made: who, what and why. Ctrl-C ends it.

    Where the connection is lost it is made again, and changes that were missed are shown then.

    Example: verl-reward weights watch --since 1
    """
    from verl_core.cli.watching import watch

    watch(ControlClient(url), since, as_json=as_json)


@app.command("history")
def history(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="So many, newest first.")] = 20,
    before: Annotated[
        int | None, typer.Option(min=1, metavar="REVISION", help="Only those before this one.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show who changed which weight when, and why.

    Example: verl-reward weights history --limit 50 --before 120
    """
    found = ControlClient(url).history(limit, before)
    if as_json:
        _print_json(found)
    else:
        _show_history(found)


def _headers(author: str | None, reason: str | None, if_revision: int | None) -> dict[str, str]:
    """Who makes a change, why, and which revision it replaces."""
    headers = {"X-Verl-Author": quote(author or _user())}
    if reason:
        headers["X-Verl-Reason"] = quote(reason)
    if if_revision is not None:
        headers["If-Match"] = f'"{if_revision}"'
    return headers


def _change(client: ControlClient, make: Callable[[], Mapping[str, Any]], as_json: bool) -> None:
    """Make a change and show what is in force after it."""
    if as_json:
        _print_json(make())
        return
    before, health = client.weights(), client.health()
    after = make()
    _show(after, health)
    if _same(before, after):
        typer.echo(
            f"Nothing is different: these values were pinned already. The request is"
            f" noted in the audit log as revision {after['revision']}."
        )


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


def _whole(words: Sequence[str]) -> dict[str, Any]:
    """The weights that ``put`` names: of a file, of standard input, or NAME=VALUE.

    What stands in a file is for the server to judge, so that its words are the same for all.
    """
    if len(words) > 1 or "=" in words[0]:
        return dict(_parsed(words))
    from verl_core.cli.weights_file import weights_file

    return weights_file(words[0])


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
