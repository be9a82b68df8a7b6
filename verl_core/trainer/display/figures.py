"""A step's figures in words, for the panel and for the plain line."""

from __future__ import annotations

from verl_core.trainer import series
from verl_core.trainer.display.progress import Progress
from verl_core.trainer.masked import idle

_NOTHING = 1e-6
"""A loss or divergence that is nearer to zero than this is what rounding has left of zero."""


def number(value: float | None) -> str:
    """A figure in a table's cell: three decimals, fewer where it is large."""
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def speeds(progress: Progress) -> list[tuple[str, str]]:
    pairs = (("rollout", series.ROLLOUT_SPEED), ("update", series.UPDATE_SPEED))
    return [
        (label, f"{value:.0f} tok/s")
        for label, key in pairs
        if (value := progress.last(key)) is not None
    ]


IDLE = "update"
"""What stands before the words on an update that had nothing to learn."""

_IDLE = {"masked": "none (masked)", "flat": "none (flat)", "other": "none"}
"""What the panel says of an update that had nothing to learn, and why."""


def losses(progress: Progress) -> list[tuple[str, str]]:
    """What the update and the responses were like."""
    pairs = (("kl", series.KL), ("loss", series.LOSS), ("critic loss", series.CRITIC_LOSS))
    shown = [
        (label, "0" if abs(value) < _NOTHING else f"{value:.3g}")
        for label, key in pairs
        if (value := progress.last(key)) is not None
    ]
    if (explained := progress.last(series.EXPLAINED)) is not None:
        shown.append(("explained variance", f"{explained:.2f}"))
    if (why := idle(progress.latest)) is not None:
        shown.append((IDLE, _IDLE[why]))
    if (length := progress.last(series.LENGTH)) is not None:
        shown.append(("length", f"{length:.1f}"))
    if (cut := progress.last(series.TRUNCATED)) is not None:
        shown.append(("cut", percent(cut)))
    return shown
