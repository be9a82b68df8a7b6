"""``verl-reward reload``: have a running job take changed files, and show what its mounts run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from verl_core.control.client import DEFAULT_URL, URL_VARIABLE, ControlClient


def command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[MOUNT]", help="The mount to reload; without it all are shown."),
    ] = None,
    url: Annotated[
        str, typer.Option("--url", envvar=URL_VARIABLE, help="The run's control plane.")
    ] = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer.")] = False,
) -> None:
    """Have a mount of a running job look at its files now, and wait for what comes of it.

    A changed file is found by itself, with the next step or request. This asks for it at once,
    tries a file once more that was refused, and gives a mount with execution: process a fresh
    worker, which runs the code that is installed now. Without a name it shows the mounts.

    Example: verl-reward reload tone
    """
    import json

    client = ControlClient(url)
    found = client.providers() if name is None else client.reload(name)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if name is None:
        _show(found, found["providers"])
        return
    typer.echo(f"{name}: {found['outcome']}: {found['detail']}")
    _show(found, [found["provider"]])


def _show(found: Mapping[str, Any], mounts: Sequence[Mapping[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from verl_core.cli.display import console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in ("Mount", "State", "Generation", "Files (SHA-256)", ""):
        table.add_column(heading, overflow="fold")
    for mount in mounts:
        files = [f"{name} {digest[:12]}" for name, digest in mount["digests"].items()]
        table.add_row(
            Text(mount["name"], style="bold cyan"),
            mount["state"],
            str(mount["generation"]),
            Text("\n".join(files)),
            Text("\n".join(_notes(mount))),
        )
    out = console()
    out.print(Text.assemble("Run ", (found["run_id"], "bold")))
    out.print(table)


def _notes(mount: Mapping[str, Any]) -> list[str]:
    notes = []
    if mount["candidate"] is not None:
        notes.append(f"a new generation is {mount['candidate']['state']}")
    if mount["retired"]:
        notes.append(f"{mount['retired']} older in use still")
    return [*notes, *(text for text in (mount["last_error"], mount["code_changed"]) if text)]
