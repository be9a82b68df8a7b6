"""How a run's progress looks: the live panel, and the plain line."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from verl_core.trainer import series
from verl_core.trainer.display.figures import losses, number, percent, speeds
from verl_core.trainer.display.progress import Phase, Progress

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 100
"""Columns from which on the figures stand beside the rewards, not beneath them."""

_SHORT_TREND = 8
"""Bars below which a trend is not drawn."""

_NAME = 22
"""Columns of a mount's name; a longer one is cut."""

_SHORT_NAME = 6
"""Columns that a name has left on the narrowest terminal: those of the title ``reward``."""

_AT_ONCE = "(Ctrl-C once more stops at once)"


def draw(progress: Progress, *, width: int, unicode: bool = True) -> RenderableType:
    """The live panel for a terminal of `width` columns."""
    parts: list[RenderableType] = [_steps(progress, unicode)]
    if progress.stopping:
        stepping = progress.phase is None and progress.stage is not None
        when = "after this step " if stepping else ""
        parts.append(Text(f"stopping {when}{_AT_ONCE}", style="bold yellow"))
    if progress.phase is not None:
        parts.append(_phase(progress.phase))
    if progress.history:
        parts += [Text(), *_body(progress, width - 4, unicode)]  # 4: the frame and its padding
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


def _body(progress: Progress, room: int, unicode: bool) -> list[RenderableType]:
    """Rewards and figures in `room` columns: beside each other where both fit as they are."""
    wide = room + 4 >= _WIDE
    bars = min(32 if wide else 18, max(progress.steps, 6)) if unicode else 0
    columns = _columns(progress, unicode)
    grid, gap = _stacked(speeds(progress) + losses(progress)), 3
    left = room - gap - _cells(grid)
    if wide and grid.row_count and left >= _natural(columns) + min(bars, _SHORT_TREND):
        beside = Table.grid(expand=True, padding=(0, gap))
        beside.add_column(ratio=1)
        beside.add_column()
        beside.add_row(_rewards(progress, columns, left, bars, unicode), grid)
        return [beside]
    lines = [_packed(pairs, room) for pairs in (speeds(progress), losses(progress)) if pairs]
    return [_rewards(progress, columns, room, bars, unicode), Text(), *lines]


def _cells(renderable: RenderableType) -> int:
    """Columns that it takes where there is room for all of it."""
    return Console(file=io.StringIO(), width=10_000).measure(renderable).maximum


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


_Columns = dict[str, list[Text]]
"""Each column of the reward table but the trend: its title, then a cell for each row."""


def _columns(progress: Progress, unicode: bool) -> _Columns:
    """``name``, ``mean``, ``change`` and ``weight``, with a row a mount, a gate, and the sum."""
    revision, changed = progress.last(series.REVISION), progress.revision_change() is not None
    style = "bold black on yellow" if changed else "bold"
    weight_title = Text("weight", style="bold")
    if revision is not None:
        weight_title = Text.assemble("weight ", (f"r{revision:.0f}", style))
    columns = {
        "name": [Text("reward")],
        "mean": [Text("mean")],
        "change": [Text(_versus(progress))],
        "weight": [weight_title],
    }
    for name, key in _shown(progress):
        gate, fused = name in progress.gates, key == series.FUSED
        value = percent(progress.last(key)) if gate else number(progress.last(key))
        weight = Text("gate", style="magenta") if gate else Text()
        if not gate and not fused:
            weight = _weight(progress, name, changed, unicode)
        cells = (
            Text(_label(name), style="bold" if fused else ""),
            Text(value, style="bold" if fused else ""),
            _moved(progress, key, unicode, share=gate),
            weight,
        )
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    return columns


def _shown(progress: Progress) -> list[tuple[str, str]]:
    """``(name, its figure's key)`` of each row of the reward table."""
    mounts = [(mount, series.mean_of(mount)) for mount in progress.mounts]
    gates = [(gate, series.rate_of(gate)) for gate in progress.gates]
    return [*mounts, *gates, ("fused", series.FUSED)]


def _versus(progress: Progress) -> str:
    """What the changes are counted from: ``vs steps 1-3``, the mean over them."""
    if progress.first_step is None or not progress.window:
        return ""
    first, last = progress.first_step, progress.first_step + progress.window - 1
    return f"vs step {first}" if first == last else f"vs steps {first}-{last}"


def _natural(columns: _Columns) -> int:
    """Columns of a terminal that the reward table takes, its trend apart."""
    return sum(max(cell.cell_len for cell in cells) + 2 for cells in columns.values())


def _rewards(
    progress: Progress, columns: _Columns, room: int, bars: int, unicode: bool
) -> RenderableType:
    """The reward table in `room` columns. Where they are few, the trend gives way first, then the
    change, then the ends of names; never a mean or a weight."""
    fitting = min(bars, room - _natural(columns))
    bars = fitting if fitting >= min(bars, _SHORT_TREND) else 0
    columns = dict(columns)
    if _natural(columns) - 2 > room:  # 2: nothing stands to the right of the last column
        del columns["change"]
    if (over := _natural(columns) - 2 - room) > 0:
        names = columns["name"]
        most = max(max(cell.cell_len for cell in names) - over, _SHORT_NAME)
        columns["name"] = [Text(_label(cell.plain, most), style=cell.style) for cell in names]
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    trends = [
        _spark(progress, key, bars, unicode, _trend_style(progress, name, key))
        for name, key in _shown(progress)
    ]
    for name, (title, *_) in columns.items():
        if name == "weight" and bars:
            table.add_column("trend", no_wrap=True, min_width=bars)
        table.add_column(title, justify="left" if name == "name" else "right", no_wrap=True)
    for trend, *cells in zip(trends, *(cells[1:] for cells in columns.values()), strict=True):
        table.add_row(*cells[:-1], *([trend] if bars else []), cells[-1])
    return table


def _trend_style(progress: Progress, name: str, key: str) -> str:
    if key == series.FUSED:
        return "bold green"
    return "magenta" if name in progress.gates else "cyan"


def _label(name: str, width: int = _NAME) -> str:
    return name if cell_len(name) <= width else set_cell_size(name, width - 1) + "…"


def _moved(progress: Progress, key: str, unicode: bool, *, share: bool = False) -> Text:
    """The change since the first steps; green is the good way: up for a reward, down for a gate's
    rate, which moves by percentage points."""
    change = progress.change(key)
    if change is None:
        return Text("")
    text = f"{100 * change:+.1f} pp" if share else f"{change:+.3f}"
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
    added = progress.last(series.multiplier_of(mount))
    return Text(f"{now:.4g} + {added:.3g}" if added else f"{now:.4g}")


def _stacked(pairs: Iterable[tuple[str, str]]) -> Table:
    """Figures one under another."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for label, value in pairs:
        grid.add_row(label, value)
    return grid


def _packed(pairs: Iterable[tuple[str, str]], room: int) -> Text:
    """Figures in lines of `room` columns; none is broken between its name and its value."""
    text, used = Text(), 0
    for label, value in pairs:
        size = cell_len(label) + 1 + cell_len(value)
        gap = 3 if used else 0
        if used and used + gap + size > room:
            text.append("\n")
            used, gap = 0, 0
        text.append(" " * gap).append(f"{label} ", style="dim").append(value)
        used += gap + size
    return text


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
