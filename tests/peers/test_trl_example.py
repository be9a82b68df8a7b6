"""examples/trl, and the code of docs/peers.md, with the real TRL: ``make test-peers``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from verl_core.rewards import WeightStore

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "examples" / "trl" / "README.md", ROOT / "docs" / "peers.md")
#: Makes a run of the documents' code a matter of seconds.
SMALL = 'max_steps=1, max_completion_length=4, report_to=[], save_strategy="no", use_cpu=True'
pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="TRL: make test-peers")


def run(folder: Path, *words: str) -> str:
    environment = {key: v for key, v in os.environ.items() if not key.startswith("VERL_REWARD")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def test_the_training_script_trains_by_live_weights(checkout, tiny_model_dir):
    small = ["--steps", "1", "--generations", "2", "--tokens", "4", "--weights", "runs/weights.db"]
    said = run(checkout, "examples/trl/train.py", "--model", str(tiny_model_dir), *small)
    assert "The model is in runs/trl." in said
    assert "reward/tone/mean" in said
    assert "open elsewhere" not in said
    weights = {"accuracy": 2.5, "tone": 1.5, "conversion": 1.0, "compliance": 1.0}
    with_cli = WeightStore(weights, path=checkout / "runs" / "weights.db")
    assert with_cli.update({"tone": 2.0}, author="test").revision == 2
    with_cli.close()


def codes() -> list[str]:
    """The documents' programs for TRL."""
    found = re.findall(
        r"^```python\n(.*?)^```", "".join(p.read_text("utf-8") for p in PAGES), re.S | re.M
    )
    return [code for code in found if "import GRPOConfig" in code]


@pytest.mark.parametrize("code", codes())
def test_the_documents_code_runs(checkout, tiny_model_dir, code):
    assert "num_generations=8, per_device_train_batch_size=16" in code
    code = code.replace(
        "num_generations=8, per_device_train_batch_size=16",
        f"num_generations=2, per_device_train_batch_size=4, {SMALL}, bf16=False",
    )
    code = code.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(tiny_model_dir))
    said = run(checkout, "-c", code + "\nprint('weights', rewards.reward_weights)\n")
    assert "weights [1.0]" in said or "weights [2.5, 1.0, 1.0, 1.0, 1.0]" in said
