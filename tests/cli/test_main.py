"""The command line as a whole: help, lazy imports, errors as messages, extensions' commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import verl_core
from verl_core.cli.errors import from_here, run
from verl_core.cli.main import COMMANDS, main
from verl_reward_sdk import ConfigError, PluginError, VerlRewardError

HEAVY = {"torch", "numpy", "transformers", "pydantic", "fastapi", "uvicorn", "httpx", "yaml"}


def imported(result: subprocess.CompletedProcess[str]) -> set[str]:
    """Top-level packages that a process started with ``-X importtime`` imported."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 20
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


def test_help_shows_every_command_with_one_line_and_imports_none(plugin_site):
    result = plugin_site.run("--help", options=("-X", "importtime"), env={"COLUMNS": "100"})
    assert result.returncode == 0
    for name, text in COMMANDS.items():
        assert name in result.stdout
        assert text in result.stdout
    assert not imported(result) & HEAVY
    assert "verl_core.cli.train" not in result.stderr


def test_the_commands_of_the_design_are_there():
    assert list(COMMANDS) == ["list", "info", "train", "serve", "weights", "reload", "talk"]


def test_version_names_the_plugin_api(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"verl-reward {verl_core.__version__} (plugin API 1)\n"


def test_an_unknown_command_names_the_nearest_and_exits_2(capsys):
    assert main(["lst"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["error: there is no command 'lst'", "       did you mean 'list'?"]


def test_no_command_shows_the_help(capsys):
    assert main([]) in (0, 2)  # click 8.2 and typer 0.20 disagree
    assert "train" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (["train"], "verl-reward train [OPTIONS] RUN.YAML [KEY=VALUE]..."),
        (["serve"], "verl-reward serve [OPTIONS] [RUN.YAML] [KEY=VALUE]..."),
        (["talk"], "verl-reward talk [OPTIONS] MODEL"),
        (["weights", "set"], "verl-reward weights set [OPTIONS] NAME=VALUE..."),
        (["weights"], "verl-reward weights [OPTIONS] COMMAND [ARGS]..."),
        ([], "verl-reward [OPTIONS] COMMAND [ARGS]..."),
    ],
)
def test_help_shows_arguments_as_one_types_them_and_flags_without_a_value(command, usage, capsys):
    assert main([*command, "--help"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert f"Usage: {usage}" in shown
    [line] = [line for line in shown if "--help" in line]
    assert line.strip("│ ").split() == ["--help", "Show", "this", "message", "and", "exit."]
    assert not any("bool" in line for line in shown)


def test_the_installed_script_is_this_function():
    script = Path(sys.executable).parent / "verl-reward"
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("verl-reward ")


def failing(error: BaseException):
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("bad"), 2),
        (PluginError("bad"), 2),
        (VerlRewardError("bad"), 1),
        (SystemExit(3), 3),
        (SystemExit(None), 0),
    ],
)
def test_errors_become_exit_codes(error, code):
    assert run(failing(error)) == code


def test_a_text_given_to_exit_is_printed(capsys):
    assert run(failing(SystemExit("stopped"))) == 1
    assert capsys.readouterr().err == "stopped\n"


def test_an_error_is_one_message_with_its_place_and_its_hint_on_a_line_of_its_own(capsys):
    place = "a-rather-long-folder-name/" * 6 + "run.yaml"
    error = ConfigError(
        "must be >= 0, not -1 [red]",
        file=place,
        line=12,
        column=5,
        path="reward.tone",
        hint="try 1",
    )
    assert run(failing(error)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"error: {place}:12:5: reward.tone: must be >= 0, not -1 [red]",
        "       try 1",
    ]


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("VERL_REWARD_DEBUG", "1")
    with pytest.raises(ConfigError):
        run(failing(ConfigError("bad")))


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run(failing(ZeroDivisionError()))


EXTENSION = """
from verl_reward_sdk import hookimpl

VERL_REWARD_API = 1

@hookimpl
def verl_reward_commands(cli):
    def cook(dish: str, hot: bool = False):
        print(f"cooked {dish}, hot={hot}")
    cli.add_command("kitchen", cook, help="Cooks a dish.")
    cli.add_command("wash", print)
"""


@pytest.fixture
def kitchen(plugin_site):
    files = {"acme_kitchen.py": EXTENSION}
    plugin_site.add("acme", "2.0", extensions={"kitchen": "acme_kitchen"}, files=files)
    return plugin_site


def test_an_extension_brings_a_command_of_its_name(kitchen, capsys):
    assert main(["kitchen", "soup", "--hot"]) == 0
    assert capsys.readouterr().out == "cooked soup, hot=True\n"
    assert main(["kitchen", "--help"]) == 0
    assert "Cooks a dish." in capsys.readouterr().out


def test_an_extensions_command_is_in_the_help_without_an_import(kitchen, capsys):
    assert main(["--help"]) == 0
    assert "From acme 2.0." in capsys.readouterr().out
    assert "acme_kitchen" not in sys.modules


def test_a_disabled_extension_has_no_command_and_is_not_imported(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("VERL_REWARD_DISABLE_AUTOLOAD", "1")
    assert main(["--help"]) == 0
    assert "kitchen" not in capsys.readouterr().out
    assert main(["kitchen", "soup"]) == 2
    assert "'kitchen' (acme 2.0) is disabled" in capsys.readouterr().err
    assert "acme_kitchen" not in sys.modules


def test_an_extension_without_a_command_of_its_name_says_so(plugin_site, capsys):
    source = "VERL_REWARD_API = 1\n"
    plugin_site.add("acme", extensions={"kitchen": "acme_k"}, files={"acme_k.py": source})
    assert main(["kitchen"]) == 2
    assert "adds no command of its name" in capsys.readouterr().err


def test_an_extension_cannot_take_the_place_of_a_built_in_command(plugin_site, capsys):
    files = {"acme_k.py": "raise RuntimeError('imported')\n"}
    plugin_site.add("acme", extensions={"list": "acme_k"}, files=files)
    assert main(["list", "--json"]) == 0
    assert capsys.readouterr().out.startswith("[")


def test_paths_under_the_current_folder_are_shown_as_one_would_type_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    text = f"{here}/a/run.yaml:1:2: x\n{here}/b.yaml (did you mean '{here}/c.yaml'?)"
    assert from_here(text) == "a/run.yaml:1:2: x\nb.yaml (did you mean 'c.yaml'?)"
    for other in (f"/x{here}/b.yaml", f"{here}-2/b.yaml", f"no folder {here}"):
        assert from_here(other) == other
    monkeypatch.chdir("/")
    assert from_here(text) == text


def test_an_error_of_a_run_names_its_file_from_here(tmp_path, monkeypatch, capsys):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.yaml").write_text("reward: [{type: x, plugin: rules}]\nsed: 1\n")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "sub/run.yaml"]) == 2
    said = capsys.readouterr().err
    assert "sub/run.yaml:2:1: sed: unknown key" in said
    assert str(tmp_path) not in said
