"""The end of a run: the trained model, the report, and what to do next."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console

from verl_core.trainer.checkpoint import checkpoints
from verl_core.trainer.quiet import quiet_transformers
from verl_core.trainer.report import write_report
from verl_core.trainer.report.summary import print_summary
from verl_core.trainer.run import Run
from verl_core.trainer.run_folder import STATE, now


def finish(run: Run, outcome: str, *, again: str) -> None:
    """Save the model, write the report, print the summary and the next commands.

    Args:
        outcome: ``finished`` or ``stopped``.
        again: the command that goes on with a run that was stopped.
    """
    folder = run.folder.path
    with run.display.phase("saving the model"), quiet_transformers():
        run.models.policy.save_pretrained(folder / "model")
        run.models.tokenizer.save_pretrained(folder / "model")
    run.folder.note(status=outcome, ended=now(), train_seconds=_train_seconds(run))
    run.tracker.close()
    with run.display.phase("writing the report"):
        write_report(folder)
    run.display.close()
    print_summary(folder)
    if outcome == "stopped":
        _print(Console(), f"Stopped early. To go on:\n  {again}")


def note_failure(run: Run, error: BaseException, *, again: str) -> None:
    """Say how to go on with a run that failed, and write down that it did.

    Args:
        again: the command that goes on with it; said only where a checkpoint is there to go on
            from.
    """
    run.display.close()
    folder, console = run.folder.path, Console(stderr=True)
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
    try:
        run.folder.note(status="failed", ended=now(), error=f"{type(error).__name__}: {error}")
    except OSError as unwritten:
        _print(console, f"That it failed could not be written to {folder / STATE}: {unwritten}")


def _print(console: Console, text: str) -> None:
    """As it is, to be copied: nothing in it is markup, and no line is wrapped."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _train_seconds(run: Run) -> float:
    started = datetime.fromisoformat(str(run.folder.state().get("started", now())))
    return (datetime.fromisoformat(now()) - started).total_seconds()
