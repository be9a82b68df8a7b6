"""What the commands share for their output on a terminal."""

from __future__ import annotations

import os
import re

from rich.console import Console
from rich.text import Text

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
