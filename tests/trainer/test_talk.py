"""Talking to a model's folder, as the closing summary of a run proposes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def talk(*arguments: str, said: str = "") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "verl_core.trainer.talk", *arguments]
    return subprocess.run(command, input=said.encode(), capture_output=True, check=False)


def test_each_line_gets_an_answer_and_the_same_one_again(tiny_model_dir: Path) -> None:
    done = talk(str(tiny_model_dir), "--max-new-tokens", "8", said="Is it heavy?\nIs it heavy?\n")
    assert done.returncode == 0, done.stderr
    half = len(done.stdout) // 2
    assert done.stdout[:half].strip()
    assert done.stdout[:half] == done.stdout[half:]


def test_the_prompts_of_a_data_file_can_be_asked(tiny_model_dir: Path, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text(json.dumps({"prompt": "Is it heavy?"}) + "\n", encoding="utf-8")
    done = talk(str(tiny_model_dir), "--max-new-tokens", "8", "--prompts", str(data))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"> Is it heavy?\n")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    done = talk(str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path).encode() in done.stderr
    assert b"Traceback" not in done.stderr
