"""examples/openrlhf: its file as OpenRLHF loads it, and the options of its training command."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "openrlhf"


def test_the_file_gives_the_function_that_openrlhf_looks_for(monkeypatch, tiny_model_dir, tmp_path):
    monkeypatch.setenv("MODEL", str(tiny_model_dir))
    monkeypatch.setenv("WEIGHTS", str(tmp_path / "live" / "weights.db"))
    spec = importlib.util.spec_from_file_location("my_reward", FOLDER / "my_reward.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prompt = "<|im_start|>user\nWhat does it cost?<|im_end|>\n<|im_start|>assistant\n"
    queries = [f"{prompt}{text}<|im_end|>" for text in ("It costs ten euros.", "Hm.")]
    answer = module.reward_func(queries, [prompt] * 2, ["It costs ten euros."] * 2)
    assert answer["extra_logs"]["reward/accuracy"] == [2.5, 0.0]
    assert answer["rewards"][0] > answer["rewards"][1]
    assert (tmp_path / "live" / "weights.db").is_file()
    module.reward_func.close()


def options(path: Path) -> set[str]:
    """What a script gives to ``add_argument``."""
    return {
        argument.value
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }


def test_the_training_command_has_options_that_openrlhf_knows():
    try:
        files = importlib.metadata.files("openrlhf") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("OpenRLHF is not installed: make test-peers")
    text = (FOLDER / "README.md").read_text("utf-8").replace("\\\n", " ")
    command = re.search(r"^python -m openrlhf\.cli\.train_ppo_ray .*$", text, re.MULTILINE)
    words = shlex.split(command[0])
    script = next(file for file in files if str(file) == "openrlhf/cli/train_ppo_ray.py")
    given = {word for word in words if word.startswith("--")}
    assert len(given) > 15
    assert given <= options(Path(script.locate()))
