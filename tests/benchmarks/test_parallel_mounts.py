"""The benchmark of mounts side by side, with two short ones: the form of its output."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "parallel_mounts.py"
KEYS = ["name", "ours", "peer", "ratio", "target", "met", "unit", "machine"]


def test_json_holds_every_figure_with_its_peer_and_target():
    options = ["--json", "--mounts", "2", "--seconds", "0.01", "--repeats", "1"]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert [(figure["name"], figure["target"]) for figure in figures] == [
        ("2 that wait, async", 1.1),
        ("2 that wait, thread", 1.1),
        ("2 that wait, process", 1.1),
        ("2 that burn, process", 1.15),
    ]
    for figure in figures:
        assert list(figure) == KEYS
        assert figure["unit"] == "s"
        assert math.isfinite(figure["ours"])
        assert figure["ours"] >= 0.005
        assert figure["ratio"] == figure["ours"] / figure["peer"]
