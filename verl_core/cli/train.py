"""``verl-reward train``: train a model with the rewards of a YAML file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from verl_core.config import RunConfig
    from verl_core.trainer.run import Run

NEWEST = "newest"

app = typer.Typer(add_completion=False)


class TrainCommand(TyperCommand):
    """``--resume`` may stand alone (the newest run) or be followed by a run's folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the newest run in the place of a folder that is not there."""
        given = list(args)
        if "--resume" in given:
            place = given.index("--resume") + 1
            following = given[place] if place < len(given) else "-"
            if following.startswith("-") or "=" in following:
                given.insert(place, NEWEST)
        return super().parse_args(ctx, given)


@app.command("train", cls=TrainCommand)
def command(
    config: Annotated[Path, typer.Argument(metavar="RUN.YAML", help="The run's config.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings that win over the file's; mounts by name: reward.tone.weight=2",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[DIR]",
            help="Go on from the last complete checkpoint of the newest run of this name, or of "
            "the run in DIR.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Validate everything, load no model, train nothing.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="One line a step instead of a live display.")
    ] = False,
) -> None:
    """Train a language model with the rewards of a YAML file.

    While it trains, weights can be read and changed: verl-reward weights get|set. Ctrl-C once
    finishes the step, checkpoints and writes the report; twice stops at once. SIGTERM does the
    same, and so does the end of ssh.

    Example: verl-reward train examples/customer-service/run.yaml trainer.steps=4
    """
    from verl_core.config import load_run_config
    from verl_core.trainer.display.steady import steady_streams
    from verl_core.trainer.interrupt import stops_raise

    settings = list(overrides or ())
    with steady_streams(), stops_raise():
        cfg = load_run_config(config, settings)
        if check:
            _check(cfg, resume)
        else:
            _train(cfg, config, settings, resume, plain)


def _check(cfg: RunConfig, resume: str | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from verl_core.plugins import PluginRegistry
    from verl_core.trainer.preflight import preflight

    checked = preflight(cfg, PluginRegistry(), load_rewards=True, resume=resume)
    console = Console()
    # soft_wrap: in a pipe or a narrow terminal too, the path stays in one piece.
    said = f" {cfg.source}: nothing is wrong that can be seen from here"
    console.print(Text.assemble(("ok", "green"), said), soft_wrap=True)
    for stage in checked.pipeline.graph.stages:
        names = ", ".join(node.name for node in stage.nodes)
        console.print(f"  {stage.name:<10} {names}", highlight=False, markup=False)
    prompts = "1 prompt" if len(checked.train) == 1 else f"{len(checked.train)} prompts"
    console.print(
        f"  {prompts} to train on, {len(checked.held_out)} held out",
        highlight=False,
    )
    if resume is not None:
        for line in _going_on(cfg, resume):
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _going_on(cfg: RunConfig, resume: str) -> list[str]:
    """What ``--resume`` would go on with; before it, what is wrong with the run's folder."""
    from verl_core.trainer import checkpoint
    from verl_core.trainer.config_changes import config_changes
    from verl_core.trainer.near import near
    from verl_core.trainer.resuming import nothing_left
    from verl_core.trainer.run_folder import RunFolder

    folder = RunFolder.to_resume(resume, Path(cfg.output), cfg.name)
    last = checkpoint.latest(folder.path)
    steps = cfg.trainer.steps
    text = f"goes on from {near(last.path)}, with step {last.step + 1} of {steps}"
    if last.step > steps:
        text = f"{near(last.path)} holds step {last.step}: trainer.steps={steps} is refused"
    elif last.step == steps:
        text = nothing_left(last)
    warnings = (folder.warning, config_changes(cfg, folder.path))
    return [*(f"warning: {warning}" for warning in warnings if warning), text]


def _train(
    cfg: RunConfig, config: Path, settings: list[str], resume: str | None, plain: bool
) -> None:
    # OpenMP's threads wait for work by spinning, for milliseconds: on a machine that is busy with
    # something else they then take turns with it, and a run gets ten times slower. A short spin
    # costs an idle machine next to nothing. torch's OpenMP reads this when it is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    from verl_core.plugins import PluginRegistry
    from verl_core.trainer.preflight import preflight

    checked = preflight(cfg, PluginRegistry(), resume=resume)
    from verl_core.control.logs import Logs
    from verl_core.control.token import tokens_from_environment

    # Only now, since these import torch, which takes seconds.
    from verl_core.trainer import jsonl
    from verl_core.trainer.finish import finish, foreseen, note_failure
    from verl_core.trainer.interrupt import Interrupt
    from verl_core.trainer.setup import Session
    from verl_core.trainer.train import train

    session = Session(cfg, resume=resume, plain=plain, checked=checked)
    with (
        _refusals(),
        Logs(cfg.server.log) as logs,
        session as run,
        Interrupt(run.display.stopping) as interrupt,
    ):
        logs.hide([*tokens_from_environment(), *run.engine.secrets])
        again = _again(config, settings, run)
        try:
            if run.first_step > 1:
                run.display.recall(jsonl.read(run.folder.path / "metrics.jsonl"))
            outcome = train(run, interrupt)
            finish(run, outcome, again=again)
        except BaseException as error:
            note_failure(run, error, again=again)
            if foreseen(error):
                raise
            raise SystemExit(1) from error  # its traceback stands above the command to go on with


@contextmanager
def _refusals() -> Iterator[None]:
    """An `OSError` is the machine's refusal, no bug: a full disk, a folder that is gone."""
    from verl_reward_sdk.errors import VerlRewardError

    try:
        yield
    except OSError as error:
        raise VerlRewardError(f"the run cannot go on: {error}") from error


def _again(config: Path, settings: list[str], run: Run) -> str:
    """The command that goes on with this run."""
    import shlex

    from verl_core.trainer.near import near

    called = Path(sys.argv[0])
    program = near(called) if called.name == "verl-reward" else "verl-reward"
    words = [program, "train", str(config), *settings, "--resume", near(run.folder.path)]
    return shlex.join(words)
