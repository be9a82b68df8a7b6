"""How a run's progress looks: the live panel, and the plain line."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from verl_core.trainer import series
from verl_core.trainer.display.progress import Phase, Progress, trend

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 100
"""Columns from which on the figures stand beside the rewards, not beneath them."""

_AT_ONCE = "(Ctrl-C once more stops at once)"


def draw(progress: Progress, *, width: int, unicode: bool = True) -> RenderableType:
    """The live panel for a terminal of `width` columns."""
    spark = min(32 if width >= _WIDE else 18, max(progress.steps, 6))
    parts: list[RenderableType] = [_steps(progress, unicode)]
    if progress.stopping:
        when = "after this step " if progress.phase is None else ""
        parts.append(Text(f"stopping {when}{_AT_ONCE}", style="bold yellow"))
    if progress.phase is not None:
        parts.append(_phase(progress.phase))
    if progress.history:
        rewards = _rewards(progress, spark=spark, unicode=unicode)
        figures = _figures(progress, stacked=width >= _WIDE)
        if width >= _WIDE and _speeds(progress) + _losses(progress):
            beside = Table.grid(expand=True, padding=(0, 3))
            beside.add_column(ratio=1)
            beside.add_column()
            beside.add_row(rewards, figures)
            parts += [Text(), beside]
        else:
            parts += [Text(), rewards, Text(), figures]
        if (troubles := _troubles(progress)) is not None:
            parts += [Text(), troubles]
    return Panel(
        Group(*parts),
        title=Text(progress.name, style="bold"),
        title_align="left",
        subtitle=_address(progress.url),
        subtitle_align="right",
        box=box.ROUNDED,
        border_style="cyan",
        padding=(0, 1),
    )


def _address(url: str | None) -> Text | None:
    """Where a browser finds the control plane's routes."""
    return Text(f"weights and status: {url}/docs", style="dim") if url else None


def plain_line(progress: Progress) -> str:
    """The last step in one line, for logs: ``step 3/16  fused 0.412 (+0.021)  …``."""
    parts = [f"step {progress.step}/{progress.steps}"]
    for label, key in [("fused", series.FUSED)] + [(m, series.mean_of(m)) for m in progress.mounts]:
        if (value := progress.last(key)) is not None:
            before = progress.before_last(key) if key == series.FUSED else None
            moved = f" ({value - before:+.3f})" if before is not None else ""
            parts.append(f"{label} {number(value)}{moved}")
    rates = [(gate, progress.last(series.rate_of(gate))) for gate in progress.gates]
    parts += [f"{gate} {percent(rate)}" for gate, rate in rates]
    if (revision := progress.last(series.REVISION)) is not None:
        parts.append(f"weights r{revision:.0f}")
    parts += [f"{label} {text}" for label, text in _speeds(progress) + _losses(progress)]
    if (seconds := progress.last(series.STEP_SECONDS)) is not None:
        parts.append(f"{seconds:.1f} s")
    if progress.left is not None and progress.step < progress.steps:
        parts.append(f"left {clock(progress.left)}")
    return "  ".join(parts)


def number(value: float | None) -> str:
    """A figure in a table's cell: three decimals, fewer where it is large."""
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def clock(seconds: float) -> str:
    """``1:05`` or ``2:03:04``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last `width` values as bars between their own lowest and highest; a gap is a blank."""
    shown = values[-width:]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    top = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[round((value - low) / span * top) if span > 0 else top // 2]
        for value in shown
    )


def _steps(progress: Progress, unicode: bool) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    dot = " · " if unicode else " | "
    notes = [f"{clock(progress.elapsed)} elapsed"]
    if progress.left is not None and progress.step < progress.steps:
        notes.append(f"{clock(progress.left)} left")
    if progress.stage:
        notes.append(progress.stage)
    grid.add_row(
        Text(f"step {progress.step}/{progress.steps}", style="bold"),
        _bar(max(progress.steps, 1), progress.step),
        Text(dot.join(notes), style="dim"),
    )
    return grid


def _bar(total: int | None, completed: int) -> ProgressBar:
    return ProgressBar(
        total=total,
        completed=completed,
        pulse=total is None,
        complete_style="cyan",
        finished_style="green",
        pulse_style="cyan",
    )


def _phase(phase: Phase) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    count = f"{phase.completed}/{phase.total}  " if phase.total else ""
    grid.add_row(
        Text(phase.title, style="cyan"),
        _bar(phase.total, phase.completed),
        Text(f"{count}{clock(phase.seconds)}", style="dim"),
    )
    return grid


def _rewards(progress: Progress, *, spark: int, unicode: bool) -> RenderableType:
    revision, changed = progress.last(series.REVISION), progress.revision_change() is not None
    style = "bold black on yellow" if changed else "bold"
    weight_title = Text("weight", style="bold")
    if revision is not None:
        weight_title = Text.assemble("weight ", (f"r{revision:.0f}", style))
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    table.add_column("reward", no_wrap=True, max_width=22)
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column("since start", justify="right", no_wrap=True)
    table.add_column("trend", no_wrap=True, min_width=spark)
    table.add_column(weight_title, justify="right", no_wrap=True)
    for mount in progress.mounts:
        key = series.mean_of(mount)
        table.add_row(
            _label(mount),
            number(progress.last(key)),
            _moved(progress, key, unicode),
            _spark(progress, key, spark, unicode, "cyan"),
            _weight(progress, mount, changed, unicode),
        )
    for gate in progress.gates:
        key = series.rate_of(gate)
        table.add_row(
            _label(gate),
            percent(progress.last(key)),
            _moved(progress, key, unicode, share=True),
            _spark(progress, key, spark, unicode, "magenta"),
            Text("gate", style="magenta"),
        )
    table.add_row(
        Text("fused", style="bold"),
        Text(number(progress.last(series.FUSED)), style="bold"),
        _moved(progress, series.FUSED, unicode),
        _spark(progress, series.FUSED, spark, unicode, "bold green"),
        "",
    )
    return table


def _label(name: str, width: int = 22) -> str:
    return name if cell_len(name) <= width else set_cell_size(name, width - 1) + "…"


def _moved(progress: Progress, key: str, unicode: bool, *, share: bool = False) -> Text:
    """The way since the start; green is the good way: up for a reward, down for a gate's rate."""
    change = trend(progress.history.get(key, ()))
    if change is None:
        return Text("")
    text = f"{100 * change:+.1f} %" if share else f"{change:+.3f}"
    if not any(digit in text for digit in "123456789"):
        return Text(text, style="dim")
    arrow = ("▲ " if change > 0 else "▼ ") if unicode else ""
    return Text(arrow + text, style="green" if (change < 0) is share else "red")


def _spark(progress: Progress, key: str, width: int, unicode: bool, style: str) -> Text:
    text = sparkline(progress.history.get(key, ()), width) if unicode else ""
    return Text(text, style=style)


def _weight(progress: Progress, mount: str, changed: bool, unicode: bool) -> Text:
    key = series.weight_of(mount)
    before, now = progress.before_last(key), progress.last(key)
    if now is None:
        return Text("-")
    if changed and before is not None and before != now:
        arrow = "→" if unicode else "->"
        digits = 4 if f"{before:.4g}" != f"{now:.4g}" else 6
        return Text(f"{before:.{digits}g} {arrow} {now:.{digits}g}", style="bold yellow")
    return Text(f"{now:.4g}")


def _speeds(progress: Progress) -> list[tuple[str, str]]:
    pairs = (("rollout", series.ROLLOUT_SPEED), ("update", series.UPDATE_SPEED))
    return [
        (label, f"{value:.0f} tok/s")
        for label, key in pairs
        if (value := progress.last(key)) is not None
    ]


def _losses(progress: Progress) -> list[tuple[str, str]]:
    pairs = (("kl", series.KL), ("loss", series.LOSS))
    shown = [
        (label, f"{value:.3g}") for label, key in pairs if (value := progress.last(key)) is not None
    ]
    if progress.last(series.TRAINED_TOKENS) == 0:
        flat = bool(progress.last(series.FLAT_GROUPS))
        shown.append(("update", "none: answers to a prompt scored alike" if flat else "none"))
    if (length := progress.last(series.LENGTH)) is not None:
        shown.append(("length", f"{length:.1f}"))
    if (cut := progress.last(series.TRUNCATED)) is not None:
        shown.append(("cut", percent(cut)))
    return shown


def _figures(progress: Progress, *, stacked: bool) -> RenderableType:
    speeds, losses = _speeds(progress), _losses(progress)
    if not stacked:
        gap = Text("   ")
        return Group(
            *(
                gap.join(Text.assemble((f"{label} ", "dim"), value) for label, value in pairs)
                for pairs in (speeds, losses)
                if pairs
            )
        )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right", no_wrap=True)
    for label, value in speeds + losses:
        grid.add_row(label, value)
    return grid


def _troubles(progress: Progress) -> Text | None:
    """What kept rows out of the step: failures, abstentions, masks. None where nothing did."""
    keys = [
        (f"{mount} {word}", f"reward/{mount}/{word}")
        for mount in (*progress.mounts, *progress.gates)
        for word in ("failed", "abstained")
    ]
    keys += [(f"rows {word}", f"reward/{word}") for word in ("masked", "blocked", "skipped")]
    found = [f"{label} {percent(share)}" for label, key in keys if (share := progress.last(key))]
    return Text("   ".join(found), style="yellow") if found else None
