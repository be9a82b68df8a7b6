"""A small run of the real trainer: a tiny model, real plugins, real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

QUESTIONS = ["What does it cost?", "Is it heavy?", "Is it any good?", "When will it come?", "Why?"]

RULES = r"""score: {base: 0.0, min: 0.0, max: 1.0}
rules:
  - {name: vowels, regex: '[aeiou]', points: 0.4, reason: has a vowel}
  - {name: spaced, regex: '\s', points: 0.3, reason: has a space}
  - {name: short, length: {unit: chars, max: 12}, points: 0.3, reason: short}
"""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """The tiny model is faster on one thread, and two processes do not fight for two cores."""
    import torch

    torch.set_num_threads(1)


class TinyRun:
    """A folder with a run's files; `config` may be changed before it is written."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        rows = [
            {"id": f"q{i}", "prompt": f"{QUESTIONS[i % 5]} ({i})", "ground_truth": "It is fine."}
            for i in range(12)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
        (folder / "heldout.jsonl").write_text("".join(lines.splitlines(True)[:6]), "utf-8")
        (folder / "rules.yaml").write_text(RULES, encoding="utf-8")
        (folder / "words.txt").write_text("zq\n", encoding="utf-8")
        self.config: dict[str, Any] = {
            "name": "tiny",
            "model": {"path": str(model)},
            "data": {"train": "prompts.jsonl", "eval": "heldout.jsonl"},
            "reward": [
                {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}},
                {"type": "overlap", "plugin": "chrf", "weight": 0.5},
                {
                    "type": "guard",
                    "plugin": "safety",
                    "role": "gate",
                    "penalty": -1.0,
                    "init_kwargs": {"words": "words.txt"},
                },
            ],
            "rollout": {"n": 4, "prompts_per_step": 2, "max_new_tokens": 8, "dtype": "float32"},
            "optim": {"lr": 1e-3, "autocast": "none"},
            "trainer": {"steps": 3, "micro_batch_rows": 4, "checkpoint_every": 1, "threads": 1},
            "server": {"enabled": False},
            "tracking": {"tensorboard": False},
            "output": str(folder / "runs"),
        }

    def write(self) -> Path:
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(self.config, sort_keys=False), encoding="utf-8")
        return path

    def train(self, *overrides: str, resume: str | None = None) -> Path:
        """Train in this process; gives the run's folder."""
        from verl_core.config import load_run_config
        from verl_core.trainer.setup import Session
        from verl_core.trainer.train import train

        cfg = load_run_config(self.write(), list(overrides))
        with Session(cfg, resume=resume, plain=True) as run:
            train(run)
            return run.folder.path

    def command(self, *arguments: str) -> list[str]:
        """``verl-reward train run.yaml …`` as a process of its own would get it."""
        words = [sys.executable, "-m", "verl_core.cli.main", "train", str(self.write())]
        return [*words, "--plain", *arguments]

    def run(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=self.folder,
            env=self.environment(),
        )

    def environment(self) -> dict[str, str]:
        kept = {key: v for key, v in os.environ.items() if not key.startswith("VERL_REWARD")}
        return {**kept, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self.folder / "cache")}


@pytest.fixture
def tiny_run(tmp_path: Path, tiny_model_dir: Path) -> TinyRun:
    """A `TinyRun` in a folder of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    return TinyRun(folder, tiny_model_dir)


def records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def read_jsonl() -> Callable[[Path], list[dict[str, Any]]]:
    return records
