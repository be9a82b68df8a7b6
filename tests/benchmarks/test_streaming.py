"""The benchmark of streaming, with a short rollout: the form of its output."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "streaming.py"
KEYS = ["name", "ours", "peer", "ratio", "target", "met", "unit", "machine"]


def test_json_holds_every_figure_with_its_peer_and_target():
    options = ["--prompts", "2", "--responses", "2", "--tokens", "8", "--repeats", "1", "--json"]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert [(figure["name"], figure["target"]) for figure in figures] == [
        ("rollout and judge, unlimited, streamed", 1.15),
        ("rollout and judge, one at a time, streamed", None),
        ("rollout and judge, one at a time, not streamed", None),
    ]
    for figure in figures:
        assert list(figure) == KEYS
        assert figure["unit"] == "s"
        assert math.isfinite(figure["ours"])
        assert figure["ratio"] == figure["ours"] / figure["peer"]
