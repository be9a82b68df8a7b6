"""The report's colours and type, and how one matplotlib drawing becomes a PNG and a themed SVG.

A drawing is made once, in the light theme's colours. Its SVG goes into the page with each of those
colours replaced by a CSS variable, so that the page's light and dark themes (and the reader's own
font, which knows more scripts than matplotlib's) apply to figures too.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verl_core.look import DARK as DARK
from verl_core.look import LIGHT as LIGHT
from verl_core.look import mount_colour as mount_colour
from verl_reward_sdk import VerlRewardError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fonts that know Chinese, Japanese or Korean, for PNGs: the page's SVGs use the reader's own.
_WIDE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
    "Hiragino Sans",
)


@dataclass(frozen=True)
class Shape:
    """Whether a drawing is for a wide page or for a phone."""

    width: float
    """Inches. At the page's scale 9 points of type are then about 12 pixels, on a phone 10."""
    narrow: bool


WIDE = Shape(10.0, narrow=False)
NARROW = Shape(4.4, narrow=True)


@contextmanager
def drawing() -> Iterator[None]:
    """matplotlib, set up for the report; its state outside is left as it was.

    Raises:
        VerlRewardError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib import font_manager
    except ImportError as error:
        raise VerlRewardError(
            "the report's figures need matplotlib, which is not installed:"
            " pip install 'verl-core[train]'"
        ) from error
    there = set(font_manager.get_font_names())
    settings: dict[str, Any] = {
        "font.family": ["DejaVu Sans", *(name for name in _WIDE_FONTS if name in there)],
        "font.size": 9.0,
        # A dollar sign in a reason is a dollar sign.
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "verl-reward",
        "axes.edgecolor": LIGHT["line"],
        "axes.labelcolor": LIGHT["muted"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlesize": 9.0,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": LIGHT["ink"],
        "grid.color": LIGHT["line"],
        "grid.linewidth": 0.6,
        "text.color": LIGHT["ink"],
        "xtick.color": LIGHT["line"],
        "ytick.color": LIGHT["line"],
        "xtick.labelcolor": LIGHT["muted"],
        "ytick.labelcolor": LIGHT["muted"],
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # A script that no installed font knows shows as boxes in the PNG; the page shows it right.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        # A figure that is too small for its labels is drawn as it is: nobody can act on that here.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        yield


def settle(figure: Figure) -> None:
    """Lay the figure out for good, once instead of before every drawing of it."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG of 150 dots an inch, on the light theme's surface."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=150, facecolor=LIGHT["surface"])
    return target.getvalue()


def as_svg(figure: Figure, prefix: str, label: str) -> str:
    """The figure as an ``<svg>`` element for the page.

    Args:
        prefix: makes its ids unique among the page's figures.
        label: what a screen reader says.
    """
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    names = {value: name for name, value in LIGHT.items()}
    pattern = re.compile("|".join(names), re.IGNORECASE)
    text = pattern.sub(lambda found: f"var(--{names[found[0].lower()]})", text)
    head, rest = text.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    safe = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return f'{head} role="img" aria-label="{safe}">{rest}'
