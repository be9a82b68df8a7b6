"""The terminal display of a training run."""

from verl_core.trainer.display.display import (
    Display,
    LiveDisplay,
    PlainDisplay,
    make_display,
    printable,
)
from verl_core.trainer.display.progress import Phase
from verl_core.trainer.display.steady import steady, steady_streams

__all__ = [
    "Display",
    "LiveDisplay",
    "Phase",
    "PlainDisplay",
    "make_display",
    "printable",
    "steady",
    "steady_streams",
]
