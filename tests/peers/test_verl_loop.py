"""The benchmark of verl's reward loop, on a few rows: its output's form, not its speed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "verl_loop.py"


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed: make test-peers")
@pytest.mark.skipif(
    find_spec("verl") is not None and Version(version("verl")) < Version("0.8.0"),
    reason="this verl's worker has no event loop of its own",
)
def test_json_holds_the_engine_alone_and_our_manager_inside_verls_loop(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    small = ["--rows", "16", "--tokens", "8", "--repeats", "1", "--mounts", "2"]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", "--model", str(tiny_model_dir), *small],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert [(figure["name"], figure["target"]) for figure in figures] == [
        ("token ids to fused reward, engine alone", 0.125),
        ("inside verl's reward loop", 1.1),
        ("decoding alone", None),
    ]
    for figure in figures:
        assert figure["unit"] == "µs a row"
        assert figure["ratio"] == pytest.approx(figure["ours"] / figure["peer"])
