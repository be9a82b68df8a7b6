"""The one place where an error becomes a message and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from verl_reward_sdk.errors import ConfigError, VerlRewardError

DEBUG = "VERL_REWARD_DEBUG"


def run(action: Callable[[], Any]) -> int:
    """Run a command; gives the exit code of the process.

    A `ConfigError` (what a person wrote cannot be used) is 2, any other error of verl-reward is 1;
    both are one message on stderr. ``VERL_REWARD_DEBUG=1`` shows the traceback instead. What is
    not an error of verl-reward is a bug, and keeps its traceback.
    """
    try:
        action()
    except SystemExit as stop:  # typer ends a command so, with its code
        return _code(stop.code)
    except VerlRewardError as error:
        if os.environ.get(DEBUG, "0") not in ("", "0"):
            raise
        show(error)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def show(error: VerlRewardError) -> None:
    """Print `error` on stderr: its further lines below the first, its hint on one of its own."""
    from rich.console import Console
    from rich.text import Text

    message, hint = str(error), getattr(error, "hint", None)
    if hint:
        message = message.removesuffix(f" ({hint})")
    message, hint = from_here(message), from_here(hint or "")
    label = "error: "
    below = "\n" + " " * len(label)
    text = Text.assemble((label, "bold red"), below.join(message.splitlines()))
    if hint:
        text.append(below).append(hint, style="yellow")
    # soft_wrap: a place such as run.yaml:12:5 stays in one piece, to be copied or clicked.
    Console(stderr=True).print(text, soft_wrap=True)


def from_here(text: str) -> str:
    """`text` with paths that lie under the current folder as one would type them here."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return text
    if here == os.path.dirname(here):  # the root: everything lies under it
        return text
    # Only where a path begins: /tmp/x is no part of /var/tmp/x.
    begin = re.compile(r"(?<![\w./\\~-])" + re.escape(here + os.sep))
    return begin.sub("", text)


def _code(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)  # noqa: T201  (as the interpreter does for sys.exit("text"))
    return 1
