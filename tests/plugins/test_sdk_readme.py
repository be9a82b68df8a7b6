"""The SDK README's example, as a reader would use it: write the files, pip install, list, score."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "sdk" / "README.md"
FILE = re.compile(r"\*\*`([\w.]+)`\*\*\n\n```\w+\n(.*?)```", re.DOTALL)

#: Mounts the example as a run's YAML does, and scores three rows with the engine.
SCORE = """
import json
from pathlib import Path
from verl_core.config import load_run_config
from verl_core.rewards import RewardEngine
from verl_reward_sdk import RewardBatch

with RewardEngine.from_config(load_run_config(Path("run.yaml")).rewards()) as engine:
    engine.setup()
    table = engine.score(RewardBatch(
        sample_ids=["a", "b", "c"],
        prompts=["?"] * 3,
        responses=["warm wool", "wool", "wool"],
        columns={column: [["wool", "warm"], ["wool", "warm"], []] for column in engine.reads},
    ))
    column = table.columns["helpful"]
    print(json.dumps([sorted(engine.reads), list(column.scores[:2]), list(column.status)]))
"""


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return dict(FILE.findall(README.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def installed(files, tmp_path_factory) -> Path:
    """A folder into which pip installed the example, built from the README's own text."""
    project = tmp_path_factory.mktemp("verl-reward-keywords")
    for name in ("pyproject.toml", "verl_reward_keywords.py"):
        (project / name).write_text(files[name], encoding="utf-8")
    target = tmp_path_factory.mktemp("installed")
    options = "--no-deps --no-build-isolation --no-index --quiet --disable-pip-version-check"
    pip = [sys.executable, "-m", "pip", "install", *options.split(), "--target", target, project]
    result = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    return target


def python(installed: Path, home: Path, *arguments: str) -> str:
    environment = {key: v for key, v in os.environ.items() if not key.startswith("VERL_REWARD")}
    environment |= {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(home)}
    result = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=home,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_example_is_about_twenty_lines(files):
    assert set(files) == {
        "pyproject.toml",
        "verl_reward_keywords.py",
        "test_keywords.py",
        "verl_reward_judge.py",
    }
    lines = [line for line in files["verl_reward_keywords.py"].splitlines() if line.strip()]
    assert len(lines) <= 24


def test_the_installed_example_is_listed(installed, tmp_path):
    listed = json.loads(python(installed, tmp_path, "-m", "verl_core.cli.main", "list", "--json"))
    assert {
        "name": "keywords",
        "state": "available",
        "reason": None,
        "dist": "verl-reward-keywords",
        "version": "0.1.0",
        "api": None,
        "origin": "verl_reward_keywords",
    } in listed


def test_info_shows_the_examples_setting(installed, tmp_path):
    command = ("-m", "verl_core.cli.main", "info", "keywords", "--json")
    facts = json.loads(python(installed, tmp_path, *command))
    assert facts["reads"] == ["keywords"]
    assert facts["score_range"] == [0.0, 1.0]
    [setting] = facts["settings"]
    assert setting["description"].startswith("The data-set column with the words")


def test_the_readmes_mount_scores_in_the_engine_with_no_edit_to_the_core(installed, tmp_path):
    text = README.read_text(encoding="utf-8")
    run = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]
    [row] = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (tmp_path / "run.yaml").write_text(run, encoding="utf-8")
    (tmp_path / "prompts.jsonl").write_text(row, encoding="utf-8")
    check = ("-m", "verl_core.cli.main", "train", "run.yaml", "--check")
    assert "1 prompt to train on" in python(installed, tmp_path, *check)
    reads, scores, status = json.loads(python(installed, tmp_path, "-c", SCORE))
    assert reads == ["product_facts"]
    assert scores == [1.0, 0.5]
    assert status == ["ok", "ok", "abstained"]


def test_the_examples_own_test_passes(installed, files, tmp_path):
    (tmp_path / "test_keywords.py").write_text(files["test_keywords.py"], encoding="utf-8")
    output = python(installed, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".")
    assert "1 passed" in output
