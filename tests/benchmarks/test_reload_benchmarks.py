"""The benchmarks of hot reload, made small: they run, and print what every benchmark prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
KEYS = ["name", "ours", "peer", "ratio", "target", "met", "unit", "machine"]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("asset_check.py", ["--files", "3", "--repeats", "2"]),
        ("swap_memory.py", ["--swaps", "2", "--megabytes", "1"]),
    ],
)
def test_json_holds_every_figure(script, arguments):
    result = subprocess.run(
        [sys.executable, str(FOLDER / script), "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert all(list(figure) == KEYS for figure in figures)
    assert figures[0]["ours"] > 0
    assert figures[0]["target"] is None  # that is of the full size
