"""The report's pictures: what is drawn stays within its frame, and lines can be told apart."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from verl_core.trainer.report import figures, theme
from verl_core.trainer.report.data import load_run


@pytest.mark.parametrize("shape", [theme.WIDE, theme.NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize(
    ("before", "moves"),
    [
        (1.158, [0.429, 0.357, 0.237, -0.133, -0.303]),  # the highest point ends two bars
        (-1.158, [0.429, -0.9, 0.237]),
        (0.2, [0.1, -0.9, 2.0]),
        (0.0, [0.0]),
    ],
)
def test_bars_and_their_labels_end_within_the_frame(
    before: float, moves: list[float], shape: theme.Shape
) -> None:
    parts = [{"mount": f"m{i}", "diff": {"mean": move}} for i, move in enumerate(moves)]
    colours = {f"m{i}": theme.mount_colour(i) for i in range(len(moves))}
    with theme.drawing():
        figure = figures.why(parts, before, colours, shape)
        theme.settle(figure)
        [axes] = figure.axes
        frame = axes.get_window_extent()
        assert len(axes.texts) == len(moves) + 2
        assert max(text.get_window_extent().x1 for text in axes.texts) < frame.x1
        low, high = axes.get_xlim()
        ends = [bar.get_x() for bar in axes.patches]
        ends += [bar.get_x() + bar.get_width() for bar in axes.patches]
        assert max(ends) < high
        assert low < min(ends) if min(ends) < 0 else low <= 0.0


def test_lines_of_one_panel_have_clearly_different_colours(make_run: Callable[..., Path]) -> None:
    with theme.drawing():
        figure = figures.training(load_run(make_run(steps=3)), theme.WIDE)
    assert figure is not None
    [panel] = [axes for axes in figure.axes if len(axes.lines) > 1]
    assert [line.get_label() for line in panel.lines] == ["rollout", "update"]
    names = {value: name for name, value in theme.LIGHT.items()}
    used = [names[str(line.get_color())] for line in panel.lines]
    for colours in (theme.LIGHT, theme.DARK):
        hues = [_hue(colours[name]) for name in used]
        for one, other in pairwise(hues):
            apart = abs(one - other)
            assert min(apart, 1 - apart) > 0.25  # of the colour wheel


def _hue(colour: str) -> float:
    """In turns of the colour wheel, of ``#rrggbb``."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return colorsys.rgb_to_hsv(red, green, blue)[0]
