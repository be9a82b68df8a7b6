"""The end of a run: the trained model, the report, and what to do next."""

from __future__ import annotations

import sys

from rich.console import Console

from verl_core.trainer.checkpoint import checkpoints
from verl_core.trainer.display import steady
from verl_core.trainer.interrupt import unstopped
from verl_core.trainer.quiet import quiet_transformers
from verl_core.trainer.report import write_report
from verl_core.trainer.report.summary import print_summary
from verl_core.trainer.run import Run
from verl_core.trainer.state_file import now, seconds_since
from verl_core.trainer.written import naming
from verl_reward_sdk import VerlRewardError


def finish(run: Run, outcome: str, *, again: str) -> None:
    """Save the model, write the report, print the summary and the next commands.

    Args:
        outcome: ``finished`` or ``stopped``.
        again: the command that goes on with a run that was stopped.

    Raises:
        VerlRewardError: something of it could not be written, as on a full disk. The run can be
            resumed, which does it again.
    """
    folder = run.folder.path
    with run.display.phase("saving the model"), quiet_transformers():
        _save_model(run)
    seconds = seconds_since(run.folder.state().get("started"))
    run.folder.note(status=outcome, ended=now(), train_seconds=seconds)
    run.tracker.close()
    with run.display.phase("writing the report"):
        write_report(folder)
    run.display.close()
    print_summary(folder, console=run.display.console)
    if outcome == "stopped":
        _print(run.display.console, f"Stopped early. To go on:\n  {again}")


def _save_model(run: Run) -> None:
    place = run.folder.path / "model"
    try:
        with naming(place):
            run.models.policy.save_pretrained(place)
            run.models.tokenizer.save_pretrained(place)
    except VerlRewardError:
        raise
    except Exception as error:  # on a full disk safetensors and tokenizers raise what they like
        raise VerlRewardError(f"{place} could not be written: {error}") from error


def note_failure(run: Run, error: BaseException, *, again: str) -> None:
    """Write down that a run failed, and say how to go on with it.

    Args:
        again: the command that goes on with it; said only where a checkpoint is there to go on
            from.
    """
    unwritten = None
    with unstopped():  # a person who presses Ctrl-C twice may press it three times
        try:
            run.folder.note(status="failed", ended=now(), error=f"{type(error).__name__}: {error}")
        except VerlRewardError as reason:
            unwritten = reason
    run.display.close()
    folder, console = run.folder.path, Console(file=steady(sys.stderr), stderr=True)
    if any(not found.damage() for found in checkpoints(folder)):
        _print(
            console,
            f"The run's checkpoints are in {folder}. To go on once the cause is mended:\n  {again}",
        )
    else:
        _print(
            console,
            f"The run in {folder} has no checkpoint to go on from: start it anew once the cause is "
            "mended.",
        )
    if unwritten is not None:
        _print(console, f"That it failed is written nowhere: {unwritten}")


def _print(console: Console, text: str) -> None:
    """As it is, to be copied: nothing in it is markup, and no line is wrapped."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
