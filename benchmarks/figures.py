"""What every benchmark prints: figures of ours beside a peer's, as a table or as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured thing.

    Args:
        name: what was measured.
        ours: this project's value.
        peer: the peer's under the same conditions, or None where there is no peer.
        unit: of both.
        target: what `ratio` (or `ours`, where there is no peer) should reach, or None.
        higher_is_better: which way `target` is met.
    """

    name: str
    ours: float
    peer: float | None
    unit: str
    target: float | None = None
    higher_is_better: bool = True

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's."""
        return self.ours / self.peer if self.peer else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.target is None:
            return None
        value = self.ours if self.ratio is None else self.ratio
        return value >= self.target if self.higher_is_better else value <= self.target

    def record(self) -> dict[str, Any]:
        """``{name, ours, peer, ratio, target, met, unit, machine}``."""
        values = asdict(self) | {"ratio": self.ratio, "met": self.met, "machine": machine()}
        keys = ("name", "ours", "peer", "ratio", "target", "met", "unit", "machine")
        return {key: values[key] for key in keys}


def machine() -> str:
    """Processor, cores, memory and torch's threads: figures of other machines do not compare."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [
        _processor(),
        f"{_cores()} cores",
        f"{memory:.0f} GiB",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads",
    ]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def warn_if_busy() -> None:
    """Say on stderr that something else is running: two programs that use every core slow each
    other down many times over, and ratios suffer too."""
    load = os.getloadavg()[0]
    if load > 0.5 * _cores():
        print(f"this machine is busy (load {load:.1f}): figures will be wrong", file=sys.stderr)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def show(
    title: str, figures: Sequence[Figure], *, as_json: bool, notes: Sequence[str] = ()
) -> None:
    """Print `figures` on stdout.

    Args:
        as_json: a JSON list of `Figure.record`, and nothing else.
        notes: lines under the table.
    """
    if as_json:
        print(json.dumps([figure.record() for figure in figures], indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("")
    for column in ("ours", "peer", "ratio", "target"):
        table.add_column(column, justify="right")
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}x"
        target = ""
        if figure.target is not None:
            target = f"{figure.target:g} {'met' if figure.met else 'missed'}"
        name = f"{figure.name}, {figure.unit}"
        table.add_row(name, _value(figure.ours), _value(figure.peer), ratio, target)
    console = Console()
    console.print(title, highlight=False, soft_wrap=True)
    console.print(table)
    for line in (*notes, f"Machine: {machine()}"):
        console.print(line, highlight=False, soft_wrap=True)


def _value(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
