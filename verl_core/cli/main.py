"""``verl-reward``: finds a command's file by its name and imports no other.

A command's file holds ``command``, a function with typer's conventions, or ``app``, a
`typer.Typer` with commands of its own. Help of the whole is made from the table below, so that it
needs none of them.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from verl_core.cli.errors import run
from verl_reward_sdk.errors import ConfigError, PluginError, did_you_mean

if TYPE_CHECKING:
    from verl_core.plugins import PluginRecord

#: Command -> one line of help. Its file is the module of that name beside this one.
COMMANDS = {
    "list": "Show the installed reward plugins and their state.",
    "info": "Show what a plugin does, its settings, and an example.",
    "train": "Train a language model with the rewards of a YAML file.",
    "serve": "Serve a config's rewards and their weights over HTTP.",
    "weights": "Read and change the weights of a running job.",
    "reload": "Have a running job take changed files, and show its mounts.",
    "talk": "Talk to a model that a run has trained.",
}


class Commands:
    """The commands that an extension adds: the SDK's `CommandRegistry`."""

    def __init__(self) -> None:
        self.added: dict[str, tuple[Callable[..., Any], str]] = {}

    def add_command(self, name: str, function: Callable[..., Any], *, help: str = "") -> None:
        """Register `function` (typer's conventions) as ``verl-reward name``."""
        self.added[name] = (function, help)


class LazyGroup(TyperGroup):
    """A group whose commands are imported when one is called; help sees their names only."""

    @cached_property
    def extensions(self) -> dict[str, PluginRecord]:
        """Installed extensions by name, as their metadata tells."""
        from verl_core.plugins import EXTENSIONS, PluginRegistry

        return {record.name: record for record in PluginRegistry().records(group=EXTENSIONS)}

    def list_commands(self, ctx: Any) -> list[str]:
        """The built-in commands, then the extensions that may be loaded."""
        usable = [r.name for r in self.extensions.values() if r.state in ("available", "loaded")]
        return [*COMMANDS, *(name for name in usable if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with the command's help, or None for an unknown name."""
        if cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name])
        record = self.extensions.get(cmd_name)
        return TyperCommand(cmd_name, help=f"From {record.source}.") if record else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The real command, imported now."""
        name = args[0]
        if name in COMMANDS:
            return name, _builtin(name), args[1:]
        if name in self.extensions:
            return name, _extension(name), args[1:]
        if ctx.resilient_parsing:  # completion of a line that is not finished
            return None, None, args[1:]
        hint = did_you_mean(name, self.list_commands(ctx))
        raise ConfigError(f"there is no command {name!r}", hint=hint)


def _builtin(name: str) -> Any:
    module = importlib.import_module(f"verl_core.cli.{name}")
    app = getattr(module, "app", None)
    return _readable(get_command(app)) if app is not None else _wrapped(name, module.command, None)


def _extension(name: str) -> Any:
    from verl_core.plugins import PluginRegistry

    cli = Commands()
    PluginRegistry().add_commands(name, cli)
    if name not in cli.added:
        added = ", ".join(sorted(cli.added)) or "none"
        raise PluginError(f"extension {name!r} adds no command of its name", hint=f"added: {added}")
    function, text = cli.added[name]
    return _wrapped(name, function, text or None)


def _wrapped(name: str, function: Callable[..., Any], text: str | None) -> Any:
    single = typer.Typer(add_completion=False)
    single.command(name, help=text)(function)
    return _readable(get_command(single))


def _readable(command: Any) -> Any:
    """`command` with a help that reads as one types: ``RUN.YAML [KEY=VALUE]...``, not
    ``{RUN.YAML} [[KEY=VALUE]...]...``; ``--help``, not ``--help <bool>``; and the lines of each
    paragraph joined, as typer keeps the breaks of a docstring."""
    # The option of the help is made at its first use and kept; its flag takes no value either.
    helps = command.get_help_option(typer.Context(command))
    for parameter in [*command.params, *([helps] if helps is not None else [])]:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif parameter.param_type_name == "argument" and parameter.metavar:
            parameter.get_usage_pieces = partial(_usage, parameter.metavar)
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for inner in getattr(command, "commands", {}).values():
        _readable(inner)
    return command


def _usage(metavar: str, ctx: Any) -> list[str]:
    """An argument in the line of the usage, as its metavar has it: brackets and dots are there."""
    return [metavar]


def _version(value: bool) -> None:
    if value:
        from verl_core import __version__
        from verl_reward_sdk.version import PLUGIN_API_VERSION

        typer.echo(f"verl-reward {__version__} (plugin API {PLUGIN_API_VERSION})")
        raise typer.Exit


#: typer converts a value that is not given with pydantic, `--help` of every command included; a
#: default that is a bool already needs no conversion, and `list` starts in half the time.
_NO_HELP = {"help": False}

app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"default_map": {**_NO_HELP, **dict.fromkeys(COMMANDS, _NO_HELP)}},
)


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Train language models with rewards that are installed as plugins."""


def main(args: Sequence[str] | None = None) -> int:
    """Run ``verl-reward``; gives the exit code.

    Args:
        args: the command line without the program's name; by default the process's own.
    """
    return run(lambda: _readable(get_command(app))(args, prog_name="verl-reward"))


if __name__ == "__main__":
    sys.exit(main())
