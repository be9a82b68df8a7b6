"""The benchmark of a training step, on the tiny model: the form of its output, not its speed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "train_step.py"
KEYS = ["name", "ours", "peer", "ratio", "target", "met", "unit", "machine"]


def bench(tiny_run, *arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(tiny_run.write()), "--steps", "1", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tiny_run.folder,
        env=tiny_run.environment(),
    )


def test_json_holds_speed_and_share_of_every_part_beside_a_peer(tiny_run):
    result = bench(tiny_run, "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert all(list(figure) == KEYS for figure in figures)
    by_name = {figure["name"]: figure for figure in figures}
    for name in ("rollout", "update", "step"):
        figure = by_name[name]
        assert figure["unit"] == "tokens/s"
        assert figure["ours"] > 0
        assert figure["ratio"] == pytest.approx(figure["ours"] / figure["peer"])
    assert by_name["scoring"]["ours"] > 0
    assert by_name["scoring"]["peer"] is None
    assert by_name["scoring"]["ratio"] is None
    shares = [figure for figure in figures if figure["name"].endswith(" share")]
    assert len(shares) == 4
    assert sum(figure["ours"] for figure in shares) == pytest.approx(100.0)
    for figure in figures:
        assert math.isfinite(figure["ours"])
        assert (figure["target"], figure["met"]) == (None, None)
        assert "torch" in figure["machine"]


def test_without_a_peer_a_table_is_printed_and_no_run_is_left_behind(tiny_run, tiny_model_dir):
    tiny_run.config["model"]["path"] = "no/such-model"
    result = bench(tiny_run, "--no-peer", "--model", str(tiny_model_dir))
    assert result.returncode == 0, result.stderr
    for word in (
        "rollout, tokens/s",
        "scoring, tokens/s",
        "update share",
        "response tokens a step",
    ):
        assert word in result.stdout
    assert not (tiny_run.folder / "runs").exists()
