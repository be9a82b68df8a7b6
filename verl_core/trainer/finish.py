"""The end of a run: the trained model, the report, and what to do next."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

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
    _note_end(run, outcome)
    run.tracker.close()
    with run.display.phase("writing the report"):
        write_report(folder)
    run.display.close()
    print_summary(folder, console=run.display.console)
    if outcome == "stopped":
        _print(run.display.console, f"Stopped early. To go on:\n  {again}")


def _note_end(run: Run, status: str, error: str | None = None) -> None:
    """Note how a session ended, and add its seconds to those of the run's sessions before."""
    state = run.folder.state()
    seconds = state.get("train_seconds")
    if (passed := seconds_since(state.get("session"))) is not None:
        seconds = max(passed, 0.0) + (seconds or 0.0)
    run.folder.note(status=status, error=error, ended=now(), train_seconds=seconds, session=None)


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


def foreseen(error: BaseException) -> bool:
    """Whether `error` is told in words: it is no bug, or Ctrl-C."""
    return isinstance(error, (VerlRewardError, OSError, KeyboardInterrupt))


def note_failure(run: Run, error: BaseException, *, again: str) -> None:
    """Write down that a run failed, or that its user stopped it at once; and say how to go on with
    it, after the traceback of what nobody foresaw: `foreseen` errors are told by who catches them.

    Args:
        again: the command that goes on with it; said only where a checkpoint is there to go on
            from.
    """
    stopped, unwritten = isinstance(error, KeyboardInterrupt), None
    with unstopped():  # a person who presses Ctrl-C twice may press it three times
        try:
            if stopped:
                _note_end(run, "stopped")
            else:
                _note_end(run, "failed", f"{type(error).__name__}: {error}")
        except VerlRewardError as reason:
            unwritten = reason
    run.display.close()
    folder, stderr = run.folder.path, steady(sys.stderr)
    if not foreseen(error):
        stderr.write("".join(traceback.format_exception(error)))
    whole = [found.step for found in checkpoints(folder) if not found.damage()]
    _print(Console(file=stderr, stderr=True), _way_on(folder, again, whole, stopped))
    if unwritten is not None:
        _print(
            Console(file=stderr, stderr=True),
            f"That it {'was stopped' if stopped else 'failed'} is written nowhere: {unwritten}",
        )


def _way_on(folder: Path, again: str, steps: Sequence[int], stopped: bool) -> str:
    """What to do after a run that did not end well, whose whole checkpoints are of `steps`."""
    if stopped and steps:
        return (
            f"Stopped at once by you. To go on from the checkpoint of step {steps[-1]}:\n  {again}"
        )
    if stopped:
        return (
            f"Stopped at once by you. The run in {folder} has no checkpoint to go on from: start "
            "it anew."
        )
    if steps:
        return (
            f"The run's checkpoints are in {folder}. To go on once the cause is mended:\n  {again}"
        )
    return (
        f"The run in {folder} has no checkpoint to go on from: start it anew once the cause is "
        "mended."
    )


def _print(console: Console, text: str) -> None:
    """As it is, to be copied: nothing in it is markup, and no line is wrapped."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
