"""The benchmarks of fusion and advantages, on a small table: the form of their output."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
KEYS = ["name", "ours", "peer", "ratio", "target", "met", "unit", "machine"]
EXPECTED = {
    "fusion.py": {
        "weighted_sum",
        "weighted_mean",
        "product",
        "min",
        "lexicographic",
        "constrained",
        "weighted_sum beside torch",
        "normalize: group, of one mount",
        "normalize: batch, of one mount",
        "normalize: running, of one mount",
    },
    "advantage.py": {"gdpo", "gdpo beside torch", "gdpo, a tenth masked", "gdpo, rows shuffled"},
}


def bench(script, *arguments):
    return subprocess.run(
        [sys.executable, str(FOLDER / script), "--rows", "1001", "--repeats", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("script", EXPECTED)
def test_json_holds_every_figure_and_a_ratio_where_there_is_a_peer(script):
    result = bench(script, "--json", "--mounts", "3")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert {figure["name"] for figure in figures} == EXPECTED[script]
    for figure in figures:
        assert list(figure) == KEYS
        assert figure["unit"] == "s"
        assert math.isfinite(figure["ours"])
        assert figure["ours"] > 0
        # Targets are of the full table.
        assert (figure["target"], figure["met"]) == (None, None)
        if "torch" in figure["name"]:
            assert figure["ratio"] == pytest.approx(figure["ours"] / figure["peer"])
        else:
            assert figure["peer"] is None


@pytest.mark.parametrize("script", EXPECTED)
def test_a_table_names_the_size_and_the_machine(script):
    result = bench(script)
    assert result.returncode == 0, result.stderr
    assert "x 8 mounts, groups of 8" in result.stdout
    assert "Machine:" in result.stdout
