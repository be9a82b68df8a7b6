"""``verl-reward talk``; what it says is tested in tests/trainer/test_talk.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from verl_core.cli.main import main


def test_it_answers_the_prompts_of_a_file(tiny_model_dir: Path, tmp_path: Path, capsys) -> None:
    data = tmp_path / "asked.jsonl"
    rows = [json.dumps({"question": f"Number {n}?"}) + "\n" for n in range(3)]
    data.write_text("".join(rows), encoding="utf-8")
    words = ["talk", str(tiny_model_dir), "--prompts", str(data), "--prompt-key", "question"]
    assert main([*words, "--limit", "2", "--max-new-tokens", "1"]) == 0
    assert capsys.readouterr().out.count("> Number") == 2


def test_what_cannot_be_read_is_an_error_with_its_place(
    tiny_model_dir: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["talk", str(tiny_model_dir), "--prompts", "nothing.jsonl"]) == 2
    assert "nothing.jsonl: no such file" in capsys.readouterr().err
    assert main(["talk", str(tiny_model_dir), "--limit", "-1"]) == 2
    assert "--limit" in capsys.readouterr().err


def test_its_help_needs_no_torch() -> None:
    program = (
        "import sys\nfrom verl_core.cli.main import main\n"
        "assert main(['talk', '--help']) == 0\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"--max-new-tokens" in done.stdout
