"""The benchmark of the engine's overhead, on the tiny model: its output's form, not its speed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "engine_overhead.py"


def test_json_holds_the_engine_alone_and_the_whole_path(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    small = ["--rows", "16", "--tokens", "8", "--repeats", "1", "--mounts", "1", "--mounts", "2"]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", "--model", str(tiny_model_dir), *small],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    by_name = {figure["name"]: figure for figure in json.loads(result.stdout)}
    for mounts in ("1 mount", "2 mounts"):
        alone = by_name[f"engine alone, {mounts}"]
        assert (alone["unit"], alone["target"], alone["peer"]) == ("µs a row and mount", 1.0, None)
        path = by_name[f"token ids to fused reward, {mounts}"]
        assert path["ours"] > 0
        has_peer = importlib.util.find_spec("trl") is not None
        assert (path["peer"] is not None) == has_peer
        assert path["target"] == (1.0 if has_peer else None)
