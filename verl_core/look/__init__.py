"""What a person looks at has one look: colours, type and the plain parts of a page.

The report of a run and the page of the control plane both take their style sheet from here, and
add what only they have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

LIGHT = {
    "ink": "#1b2330",
    "muted": "#66707f",
    "line": "#dfe3e9",
    "surface": "#fefefe",
    "gate": "#c62f2f",
    "before": "#8d97a6",
    "good": "#15803e",
    "bad": "#b42319",
    "c0": "#2463eb",
    "c1": "#0c9488",
    "c2": "#8f35e8",
    "c3": "#c26a05",
    "c4": "#d32878",
    "c5": "#55820e",
    "c6": "#0b7396",
    "c7": "#79552f",
}
DARK = {
    "ink": "#e8ebf0",
    "muted": "#98a2b3",
    "line": "#2d3441",
    "surface": "#161a22",
    "gate": "#f87171",
    "before": "#7b8698",
    "good": "#4ade80",
    "bad": "#f98a80",
    "c0": "#6ea8fe",
    "c1": "#2dd4bf",
    "c2": "#c38bfc",
    "c3": "#f7b32b",
    "c4": "#f47ab5",
    "c5": "#a3d63a",
    "c6": "#38bdf2",
    "c7": "#c8a27a",
}
MOUNT_COLOURS = tuple(name for name in LIGHT if re.fullmatch(r"c\d", name))

_PAGE = {"light": "#f4f5f7", "dark": "#0e1117"}


def mount_colour(index: int) -> str:
    """The name of the colour of the `index`-th mount; the ninth looks like the first again."""
    return MOUNT_COLOURS[index % len(MOUNT_COLOURS)]


def style_sheet() -> str:
    """CSS: the colours as variables, light and dark as the reader's system is set, and the parts
    that all pages have."""
    base = (resources.files("verl_core.look") / "base.css").read_text("utf-8")
    return (
        f":root {{ color-scheme: light dark; --page: {_PAGE['light']}; {_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --page: {_PAGE['dark']};"
        f" {_variables(DARK)} }} }}\n{base}"
    )


def _variables(palette: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in palette.items())
