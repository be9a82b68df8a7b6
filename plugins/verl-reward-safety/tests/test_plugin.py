"""The gate as the loader, the command line and a config meet it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pydantic import ValidationError

import verl_reward_safety
from verl_reward_safety import Safety, SafetyConfig
from verl_reward_sdk import ConfigError


def test_importing_it_loads_no_heavy_library() -> None:
    code = (
        "import sys, verl_reward_safety as plugin; list(plugin.verl_reward_providers());"
        "print([m for m in ('ahocorasick', 'opencc', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_entry_point_names_the_gate() -> None:
    (entry,) = entry_points(group="verl_reward", name="safety")
    assert entry.value == "verl_reward_safety"
    assert [p.name for p in verl_reward_safety.verl_reward_providers()] == ["safety"]
    assert verl_reward_safety.VERL_REWARD_API == 1
    assert Safety.role == "gate"


def test_lists_are_found_beside_the_config_and_are_its_assets(tmp_path) -> None:
    for name in ("words.txt", "allow.txt"):
        (tmp_path / name).write_text("best\n")
    config = SafetyConfig.model_validate(
        {"words": "words.txt", "allow": "allow.txt"}, context={"base_dir": tmp_path}
    )
    assert Safety(config).assets() == (tmp_path / "words.txt", tmp_path / "allow.txt")
    alone = SafetyConfig.model_validate({"words": "words.txt"}, context={"base_dir": tmp_path})
    assert Safety(alone).assets() == (tmp_path / "words.txt",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "words"),
        ({"words": "gone.txt"}, "no such file or folder: .*gone.txt"),
        ({"words": "words.txt", "severity": "none"}, "severity"),
        ({"words": "words.txt", "word": "x"}, "word\n"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name(tmp_path, options, said) -> None:
    (tmp_path / "words.txt").write_text("best\n")
    with pytest.raises(ValidationError, match=said):
        SafetyConfig.model_validate(options, context={"base_dir": tmp_path})


@pytest.mark.parametrize("severity", ["penalty", "veto", "skip"])
def test_the_gate_says_the_word_it_is_told_to(gate, batch_of, severity) -> None:
    built = gate(["best"], severity=severity)
    result = built.score(batch_of(["best", "fine", ""]))
    assert result.severity == [severity, "none", "none"]
    scores, scored = result.checked(provider="safety", n=3, score_range=built.score_range)
    assert list(scores) == [0.0, 1.0, 1.0]
    assert scored.all()


def test_a_broken_list_is_refused_when_it_is_loaded(tmp_path) -> None:
    (tmp_path / "words.txt").write_text("best\n\n")
    provider = Safety(SafetyConfig(words=tmp_path / "words.txt"))
    with pytest.raises(ConfigError, match=r"words\.txt:2: the line is empty"):
        provider.setup()


def test_the_gate_travels_to_a_worker(tmp_path, batch_of) -> None:
    (tmp_path / "words.txt").write_text("best\n")
    sent = pickle.loads(pickle.dumps(Safety(SafetyConfig(words=tmp_path / "words.txt"))))
    sent.setup()
    assert list(sent.score(batch_of(["best"])).scores) == [0.0]


def test_every_option_explains_itself() -> None:
    properties = SafetyConfig.model_json_schema()["properties"]
    assert all(entry.get("description") for entry in properties.values())


def test_the_readme_example_does_what_it_says(tmp_path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for name in ("words.txt", "allow.txt"):
        block = readme.split(f"`{name}`:\n\n```text\n", 1)[1].split("```", 1)[0]
        (tmp_path / name).write_text(block, encoding="utf-8")
    code = readme.split("```python\n", 1)[1].split("```", 1)[0]
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.stdout == readme.split("prints\n\n```text\n", 1)[1].split("```", 1)[0]
