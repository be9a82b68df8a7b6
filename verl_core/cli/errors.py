"""The one place where an error becomes a message and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from verl_core.trainer.near import here, started_here
from verl_reward_sdk.errors import ConfigError, VerlRewardError

DEBUG = "VERL_REWARD_DEBUG"


def run(action: Callable[[], Any]) -> int:
    """Run a command; gives the exit code of the process.

    A `ConfigError` (what a person wrote cannot be used) is 2, any other error of verl-reward is 1;
    both are one message on stderr. ``VERL_REWARD_DEBUG=1`` shows the traceback instead. What is
    not an error of verl-reward is a bug, and keeps its traceback.
    """
    with started_here():  # a plugin may change the folder; paths are shown to who started us
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
    """Print `error` on stderr: its further lines below the first, its hint on one of its own.

    Where stderr cannot be written to, nothing is said: the exit code still is.
    """
    from rich.console import Console
    from rich.text import Text

    from verl_core.trainer.display.steady import steady

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
    Console(file=steady(sys.stderr), stderr=True).print(text, soft_wrap=True)


def from_here(text: str) -> str:
    """`text` with paths that lie under the current folder as one would type them here."""
    start = here()
    if start is None or start == os.path.dirname(start):  # the root: everything lies under it
        return text
    # Only where a path begins: /tmp/x is no part of /var/tmp/x.
    begin = re.compile(r"(?<![\w./\\~-])" + re.escape(start + os.sep))
    return begin.sub("", text)


def _code(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)  # noqa: T201  (as the interpreter does for sys.exit("text"))
    return 1
