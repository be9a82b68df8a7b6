"""examples/verl: its data, its rewards in verl's loop, and the settings of its training command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the examples, with the data that verl's needs."""
    shutil.copytree(
        ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("runs", "*.sqlite")
    )
    folder = tmp_path / "examples" / "verl"
    done = run(folder, sys.executable, "make_data.py")
    assert "128 prompts" in done
    return folder


def run(folder: Path, *words: str, timeout: float = 280) -> str:
    environment = {key: v for key, v in os.environ.items() if not key.startswith("VERL_REWARD")}
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment | {"PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_data_have_what_verl_and_the_rewards_look_for(example):
    rows = [json.loads(line) for line in (example / "train.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) > 100
    for row in rows:
        assert row["prompt"][-1]["role"] == "user"
        assert row["reward_model"]["ground_truth"]
        assert row["extra_info"]["answer"] in row["reward_model"]["ground_truth"]


@needs_verl
def test_verl_s_loop_tells_a_good_answer_from_none(example, tiny_model_dir):
    said = run(
        example, sys.executable, "try_rewards.py", "--rows", "2", "--model", str(tiny_model_dir)
    )
    table = [line.split() for line in said.splitlines() if line.strip()]
    start = next(number for number, words in enumerate(table) if words[0] == "acc")
    assert table[start][1:3] == ["reward/accuracy", "reward/tone"]
    assert any(line.startswith("Waiting for verl's reward workers") for line in said.splitlines())
    good, none, other, none_again = (float(words[0]) for words in table[start + 1 : start + 5])
    assert min(good, other) > max(none, none_again)


@needs_verl
def test_the_training_command_is_one_that_verl_composes(example):
    said = run(example, "bash", "train.sh", "trainer.total_epochs=3", "--cfg", "job")
    config = yaml.safe_load(said[said.index("actor_rollout_ref:") :])
    assert config["reward"]["reward_kwargs"] == {
        "verl_reward": {"config": str(example / "run.yaml")}
    }
    assert config["reward"]["reward_manager"]["name"] == "VerlRewardManager"
    assert config["trainer"]["total_epochs"] == 3
