"""The end of a run: the trained model, the report, and what to do next."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console

from verl_core.trainer.quiet import quiet_transformers
from verl_core.trainer.report import write_report
from verl_core.trainer.report.summary import print_summary
from verl_core.trainer.run import Run
from verl_core.trainer.run_folder import now
from verl_reward_sdk import VerlRewardError


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
        Console().print(f"Stopped early. To go on:\n  {again}", soft_wrap=True, highlight=False)


def note_failure(run: Run, error: BaseException, *, again: str) -> None:
    """Write down that the run failed, and say how to go on with it."""
    run.folder.note(status="failed", ended=now(), error=f"{type(error).__name__}: {error}")
    run.display.close()
    if isinstance(error, (VerlRewardError, KeyboardInterrupt)):
        Console(stderr=True).print(
            f"The run's checkpoints are in {run.folder.path}. To go on once the cause is mended:\n"
            f"  {again}",
            soft_wrap=True,
            highlight=False,
        )


def _train_seconds(run: Run) -> float:
    started = datetime.fromisoformat(str(run.folder.state().get("started", now())))
    return (datetime.fromisoformat(now()) - started).total_seconds()
