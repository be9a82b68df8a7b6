"""How a step looks in one plain line, for logs."""

from __future__ import annotations

from collections.abc import Sequence

from verl_core.trainer import series
from verl_core.trainer.display.figures import IDLE, losses, number, percent, speeds
from verl_core.trainer.display.panel import clock
from verl_core.trainer.display.progress import Progress
from verl_core.trainer.masked import idle_text


def plain_line(progress: Progress) -> str:
    """The last step in one line, for logs: ``step 3/16  fused 0.412 (+0.021)  …``."""
    parts = [f"step {progress.step}/{progress.steps}"]
    if (fused := progress.last(series.FUSED)) is not None:
        before = progress.before_last(series.FUSED)
        moved = f" ({fused - before:+.3f})" if before is not None else ""
        parts.append(f"fused {number(fused)}{moved}")
    parts += filter(None, (_mount_text(progress, mount) for mount in progress.mounts))
    for gate in progress.gates:
        told = _notes(_trouble(progress, gate, scored=True))
        parts.append(f"{gate} {percent(progress.last(series.rate_of(gate)))}{told}")
    if (revision := progress.last(series.REVISION)) is not None:
        parts.append(f"weights r{revision:.0f}")
    why, share = idle_text(progress.latest), progress.last(series.MASKED)
    if share and not why:
        parts.append(f"masked {percent(share)}")
    parts += [f"{label} {text}" for label, text in speeds(progress)]
    parts += [why if label == IDLE else f"{label} {text}" for label, text in losses(progress)]
    if (seconds := progress.last(series.STEP_SECONDS)) is not None:
        parts.append(f"{seconds:.1f} s")
    if progress.left is not None and progress.step < progress.steps:
        parts.append(f"left {clock(progress.left)}")
    return "  ".join(parts)


def _mount_text(progress: Progress, mount: str) -> str:
    """``tone 0.412 (failed 25.0 %)``; empty where there is nothing to tell of the mount."""
    mean = progress.last(series.mean_of(mount))
    notes = _trouble(progress, mount, scored=mean is not None)
    key = series.multiplier_of(mount)
    before, now = progress.before_last(key), progress.last(key)
    if before is not None and now is not None and before != now:
        notes.append(f"multiplier {before:.3g} -> {now:.3g}")
    return f"{mount} {number(mean)}{_notes(notes)}" if mean is not None or notes else ""


def _trouble(progress: Progress, mount: str, *, scored: bool) -> list[str]:
    """The share of a mount's rows that failed; where it scored none, of those that abstained too,
    which otherwise is nothing to worry about."""
    words = ("failed",) if scored else ("failed", "abstained")
    shares = [(word, progress.last(f"reward/{mount}/{word}")) for word in words]
    return [f"{word} {percent(share)}" for word, share in shares if share]


def _notes(notes: Sequence[str]) -> str:
    return f" ({', '.join(notes)})" if notes else ""
