"""The figures of the report, each one function from figures to a matplotlib drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from verl_core.trainer import series
from verl_core.trainer.report.data import RunData
from verl_core.trainer.report.statistics import Floats
from verl_core.trainer.report.story import number, signed
from verl_core.trainer.report.theme import LIGHT, Shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Colours = Mapping[str, str]
"""mount -> the name of its colour in `theme.LIGHT`."""

_SMOOTH_FROM = 40
"""Steps from which on a moving mean is drawn over the faint figures of single steps."""


_LABEL_GAP = 5.0
"""Points between a bar's end and the text beside it, and between that and the frame."""


def rewards(run: RunData, colours: Colours, shape: Shape) -> Figure:
    """Reward by mount over steps; beneath it the gates' rates and the weights; revisions marked."""
    heights = [2.7, *([3.4] if run.mounts else []), *([1.5] if run.gates else []), 2.3]
    figure, axes = _panels(shape, heights, 0.62 * sum(heights) + 0.9)
    rest = iter(axes)
    top = next(rest)
    fused = run.series(series.FUSED)
    _line(top, run.steps, fused, "fused", LIGHT[colours["fused"]], strong=True)
    top.set_title("fused reward, mean of the training batch")
    labels = []
    if run.mounts:
        scores = next(rest)
        for mount in run.mounts:
            values = run.series(series.mean_of(mount))
            labels.append((scores, _line(scores, run.steps, values, mount, LIGHT[colours[mount]])))
        scores.set_title("score by mount, mean of the training batch")
    if run.gates:
        rates = next(rest)
        for gate in run.gates:
            values = 100 * run.series(series.rate_of(gate))
            labels.append((rates, _line(rates, run.steps, values, gate, LIGHT[colours[gate]])))
        rates.set_title("answers on which a gate spoke, %")
        rates.set_ylim(0, max(rates.get_ylim()[1], 5.0))
    bottom = next(rest)
    labels += [(bottom, end) for end in _weights(run, bottom, colours)]
    bottom.set_title("weights")
    bottom.set_xlabel("step")
    _integer_steps(bottom, run.steps)
    _mark_revisions(run, axes, shape)
    # Names at the right narrow the panels and leave their heights, by which names are spaced.
    _layout().execute(figure)
    for panel in axes:
        _label_ends(panel, [end for where, end in labels if where is panel], shape)
    return figure


def why(
    parts: Sequence[Mapping[str, Any]], before: float, colours: Colours, shape: Shape
) -> Figure:
    """How the fused reward got from before to after: a bar for what each mount added to it.

    Args:
        parts: ``contributions`` of report.json, in the order in which they are drawn.
        before: the fused reward before; with the parts it makes the one after.
    """
    figure, (axes,) = _panels(shape, [1.0], 0.36 * (len(parts) + 2) + 0.6)
    at, rows = before, len(parts) + 1
    axes.barh(0, before, color=LIGHT["before"], height=0.62)
    _beside(axes, max(before, 0.0), 0, number(before))
    for row, part in enumerate(parts, start=1):
        moved = part["diff"]["mean"]
        axes.plot([at, at], [row - 1 + 0.31, row + 0.31], color=LIGHT["muted"], linewidth=0.7)
        axes.barh(row, moved, left=at, color=LIGHT[colours[part["mount"]]], height=0.62)
        _beside(axes, max(at, at + moved), row, signed(moved))
        at += moved
    axes.plot([at, at], [rows - 1 + 0.31, rows + 0.31], color=LIGHT["muted"], linewidth=0.7)
    axes.barh(rows, at, color=LIGHT["ink"], height=0.62)
    _beside(axes, max(at, 0.0), rows, number(at), weight="bold")
    names = ["before training", *(part["mount"] for part in parts), "after training"]
    axes.set_yticks(range(rows + 1), [_short(name, shape) for name in names])
    axes.tick_params(axis="y", length=0, labelcolor=LIGHT["ink"])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.axvline(0, color=LIGHT["muted"], linewidth=0.8)
    axes.set_xlabel("fused reward on held-out prompts")
    _room_for_labels(figure, axes)
    return figure


def held_out(measures: Sequence[Mapping[str, Any]], colours: Colours, shape: Shape) -> Figure:
    """Each measure on held-out prompts, before, after or both, with 95 % intervals."""
    groups = [
        ("", [m for m in measures if m["kind"] == "fused"], 1.0),
        ("score by mount", [m for m in measures if m["kind"] == "mount"], 1.0),
        ("share, %", [m for m in measures if m["unit"] == "share"], 100.0),
        ("tokens", [m for m in measures if m["unit"] == "tokens"], 1.0),
    ]
    groups = [group for group in groups if group[1]]
    heights = [len(group[1]) + 1.15 for group in groups]
    figure, panels = _panels(shape, heights, 0.33 * sum(heights) + 0.6, share_x=False)
    for (title, members, scale), axes in zip(groups, panels, strict=True):
        for row, measure in enumerate(members):
            _dumbbell(axes, row, measure, scale, LIGHT[colours.get(measure["name"], "muted")])
        axes.set_title(title)
        axes.set_yticks(range(len(members)), [_cut(m["label"], 24) for m in members])
        axes.set_ylim(len(members) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0, labelcolor=LIGHT["ink"])
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.12)
        if scale == 100.0:
            left, right = axes.get_xlim()
            axes.set_xlim(max(left, -2.0), min(right, 102.0))
    marks = [("before", "○ before"), ("after", "● after")]
    shown = [text for side, text in marks if any(measure[side] for measure in measures)]
    key = " · ".join([*shown, "▬ 95 % interval"])
    if any(measure["reference"] is not None for measure in measures):
        key += " · | references"
    panels[0].set_title(key, loc="right", fontsize=8, fontweight="normal", color=LIGHT["muted"])
    return figure


def training(run: RunData, shape: Shape) -> Figure | None:
    """Answer length, KL, loss and speed over steps; None where no step has any of them."""
    from matplotlib.figure import Figure

    panels = [
        ("answer length, tokens", [("", series.LENGTH, "c0", 1.0)]),
        ("answers cut off, %", [("", series.TRUNCATED, "c3", 100.0)]),
        ("KL to the reference model", [("", series.KL, "c2", 1.0)]),
        ("policy loss", [("", series.LOSS, "c4", 1.0)]),
        (
            "tokens per second",
            [
                ("rollout", series.ROLLOUT_SPEED, "c0", 1.0),
                ("update", series.UPDATE_SPEED, "c3", 1.0),
            ],
        ),
        ("seconds a step", [("", series.STEP_SECONDS, "ink", 1.0)]),
    ]
    there = [
        (title, lines)
        for title, lines in panels
        if any(np.isfinite(run.series(key)).any() for _, key, _, _ in lines)
    ]
    if not there:
        return None
    columns = 1 if shape.narrow else min(len(there), 3)
    rows = -(-len(there) // columns)
    figure = Figure(figsize=(shape.width, 1.75 * rows + 0.3), layout=_layout())
    grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes, (title, lines) in zip(grid, there, strict=False):
        for name, key, colour, scale in lines:
            _line(axes, run.steps, scale * run.series(key), name, LIGHT[colour])
        axes.set_title(title)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=8, loc="best", labelcolor=LIGHT["muted"])
        _integer_steps(axes, run.steps)
    for axes in grid[len(there) :]:
        axes.set_visible(False)
    return figure


def _layout() -> Any:
    """A layout that gives labels their room, and leaves a margin of an eighth of an inch."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, hspace=0.03)


def _panels(
    shape: Shape, heights: Sequence[float], height: float, *, share_x: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure of `height` inches with panels one under another."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(shape.width, height), layout=_layout())
    grid = figure.subplots(
        len(heights), 1, sharex=share_x, height_ratios=list(heights), squeeze=False
    )
    return figure, grid.ravel().tolist()


def _line(
    axes: Axes, steps: Sequence[int], values: Floats, name: str, colour: str, strong: bool = False
) -> tuple[str, float, str]:
    """Draw one series; returns its name, its last height (NaN where it has none) and its colour,
    for a label."""
    smooth = _moving_mean(values) if len(steps) >= _SMOOTH_FROM else None
    width = 2.6 if strong else 1.6
    dots = 3.0 if len(steps) < _SMOOTH_FROM else 0.0
    if smooth is not None:
        axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.3)
    shown = values if smooth is None else smooth
    axes.plot(steps, shown, color=colour, linewidth=width, marker="o", markersize=dots, label=name)
    known = shown[np.isfinite(shown)]
    return name, float(known[-1]) if len(known) else np.nan, colour


def _moving_mean(values: Floats) -> Floats:
    """The mean over a centred window of a twentieth of the steps, over what is finite in it."""
    half = max(len(values) // 40, 1)
    known = np.isfinite(values)
    sums = np.convolve(np.where(known, values, 0.0), np.ones(2 * half + 1), mode="same")
    counts = np.convolve(known.astype(np.float64), np.ones(2 * half + 1), mode="same")
    means: Floats = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return means


def _weights(run: RunData, axes: Axes, colours: Colours) -> list[tuple[str, float, str]]:
    """Each mount's weight as a staircase; weights that are equal somewhere are moved apart."""
    from matplotlib.transforms import ScaledTranslation

    columns = {mount: run.series(series.weight_of(mount)) for mount in run.mounts}
    together = [
        mount
        for mount, values in columns.items()
        if any(np.any(values == other) for name, other in columns.items() if name != mount)
    ]
    ends = []
    for mount, values in columns.items():
        colour = LIGHT[colours[mount]]
        (line,) = axes.step(run.steps, values, where="mid", color=colour)
        if mount in together:
            points = (together.index(mount) - (len(together) - 1) / 2) * 1.1
            shift = ScaledTranslation(0, points / 72, axes.figure.dpi_scale_trans)
            line.set_transform(axes.transData + shift)
        if len(run.steps) == 1:
            line.set_marker("o")
        known = values[np.isfinite(values)]
        if len(known):
            ends.append((mount, float(known[-1]), colour))
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    return ends


def _mark_revisions(run: RunData, axes: Sequence[Axes], shape: Shape) -> None:
    """A line through all panels where a revision of the weights was first used, and who made it."""
    marked = [
        (step, change)
        for change in run.changes[1:]
        if (step := run.first_step(change.revision)) is not None
    ]
    for place, (step, change) in enumerate(marked):
        for panel in axes:
            panel.axvline(step - 0.5, color=LIGHT["muted"], linewidth=1.0, linestyle=(0, (3, 3)))
        text = f"r{change.revision}"
        if not shape.narrow and len(marked) <= 4:
            reason = f": {change.reason}" if change.reason else ""
            text += f" {change.author}{reason}"
        axes[0].annotate(
            _cut(text, 44),
            xy=(step - 0.5, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(4, -9 - 11 * (place % 3)),
            textcoords="offset points",
            fontsize=8,
            color=LIGHT["muted"],
            annotation_clip=False,
        )


def _label_ends(axes: Axes, ends: Sequence[tuple[str, float, str]], shape: Shape) -> None:
    """Name each line at its right end, moved apart where two names would overlap. All names stay
    beside their panel, smaller where they are many: one that lay far off would take the panel's
    own room."""
    ends = [end for end in ends if np.isfinite(end[1])]
    if not ends:
        return
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    low, high = axes.get_ylim()
    gap = min(11.0, height / len(ends))
    placed: list[tuple[str, float, float, str]] = []
    at = -np.inf
    for name, value, colour in sorted(ends, key=lambda end: end[1]):
        wanted = (value - low) / (high - low) * height
        at = max(wanted, at + gap)
        placed.append((name, wanted, at, colour))
    over = max(0.0, placed[-1][2] - height)
    for name, wanted, position, colour in placed:
        axes.annotate(
            _short(name, shape),
            xy=(1.0, wanted / height),
            xycoords="axes fraction",
            xytext=(5, position - over - wanted),
            textcoords="offset points",
            color=colour,
            va="center",
            fontsize=min(8.5, 0.8 * gap),
            fontweight="bold" if name == "fused" else "normal",
            annotation_clip=False,
        )


def _dumbbell(axes: Axes, row: int, measure: Mapping[str, Any], scale: float, colour: str) -> None:
    """Before (hollow) and after (filled) on one row, each with its interval."""
    sides = [("before", -0.13, LIGHT["before"]), ("after", 0.13, colour)]
    for side, lift, shade in sides:
        found = measure[side]
        if found is None:
            continue
        if found["low"] is not None:
            ends = [scale * found["low"], scale * found["high"]]
            axes.plot(ends, [row + lift] * 2, color=shade, linewidth=3.2, alpha=0.45)
        face = LIGHT["surface"] if side == "before" else shade
        axes.plot(scale * found["mean"], row + lift, "o", color=shade, mfc=face, ms=6, mew=1.6)
    if measure["reference"] is not None:
        axes.plot(scale * measure["reference"], row, "|", color=LIGHT["muted"], ms=16, mew=1.6)


def _room_for_labels(figure: Figure, axes: Axes) -> None:
    """Widen the horizontal axis until bars and the texts beside them end within the frame."""
    axes.use_sticky_edges = False  # a bar that begins where the longest ends would pin the frame
    axes.margins(x=0.0)
    _layout().execute(figure)
    low, high = axes.get_xlim()
    points = axes.get_window_extent().width * 72 / axes.figure.dpi
    label = max(text.get_window_extent().width for text in axes.texts)
    right = (label * 72 / axes.figure.dpi + 2 * _LABEL_GAP) / points
    left = _LABEL_GAP / points if low < 0 else 0.0
    span = (high - low) / max(1.0 - left - right, 0.1)
    axes.set_xlim(low - left * span, high + right * span)


def _beside(axes: Axes, x: float, y: float, text: str, weight: str = "normal") -> None:
    """`text` to the right of a bar's end."""
    axes.annotate(
        text,
        (x, y),
        (_LABEL_GAP, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        fontweight=weight,
    )


def _integer_steps(axes: Axes, steps: Sequence[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    if len(steps) == 1:
        axes.set_xlim(steps[0] - 1, steps[0] + 1)


def _short(text: str, shape: Shape) -> str:
    return _cut(text, 16 if shape.narrow else 24)


def _cut(text: str, length: int) -> str:
    """One line of at most `length` characters that a font can be asked for."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= length else line[: length - 1] + "…"
