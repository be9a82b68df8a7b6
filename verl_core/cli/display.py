"""What the commands share for their output on a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Table

    from verl_core.cli.settings import Setting

#: Columns of output that goes to a file or a pipe: nothing there needs to be folded.
PIPED_WIDTH = 160


def console() -> Console:
    """A console on stdout. NO_COLOR, TERM and COLUMNS are obeyed; a pipe gets plain wide lines."""
    out = Console()
    if not out.is_terminal and "COLUMNS" not in os.environ:
        return Console(width=PIPED_WIDTH)
    return out


def prose(text: str) -> Text:
    """A docstring's paragraph for the terminal: lines joined, what stands in backticks coloured.

    A paragraph with a list or an indented block keeps its lines.
    """
    lines = text.splitlines()
    if not any(re.match(r"\s|[-*] |\d+[.)] ", line) for line in lines):
        text = " ".join(text.split())
    parts = re.split(r"``(.+?)``|`(.+?)`", text)
    shown = Text()
    for place, part in enumerate(parts):
        shown.append(part or "", style="cyan" if place % 3 else "")
    return shown


def settings_table(keys: Iterable[Setting], title: str | None = None) -> Table:
    """Keys with type, default and description; a key without a default is marked as required."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("Key", style="cyan", overflow="fold")
    table.add_column("Type")
    table.add_column("Default", overflow="fold")
    table.add_column("Description", ratio=1)
    for key in keys:
        default = Text("required", style="yellow") if key.default is None else Text(key.default)
        table.add_row(key.key, Text(key.type), default, prose(key.description))
    return table
