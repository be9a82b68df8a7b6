"""The plugin as the loader, the command line and a config meet it."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pydantic import ValidationError

import verl_reward_overlap
from verl_reward_overlap import Bleu, BleuConfig, Chrf, ChrfConfig, Rouge, RougeConfig


def test_importing_it_loads_neither_library() -> None:
    code = (
        "import sys, verl_reward_overlap as plugin; list(plugin.verl_reward_providers());"
        "plugin.Rouge(plugin.RougeConfig());"
        "print([m for m in ('sacrebleu', 'rouge_score', 'nltk', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_each_entry_point_names_a_class_of_the_module() -> None:
    found = {
        entry.name: entry.value
        for entry in entry_points(group="verl_reward")
        if entry.value == "verl_reward_overlap"
    }
    names = {provider.name for provider in verl_reward_overlap.verl_reward_providers()}
    assert set(found) == names == {"bleu", "chrf", "rouge"}


def test_the_plugin_api_is_a_literal() -> None:
    tree = ast.parse(Path(verl_reward_overlap.__file__).read_text(encoding="utf-8"))
    literals = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERL_REWARD_API"
    ]
    assert literals == [1]


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (BleuConfig, {"smooth_method": "linear"}, "smooth_method"),
        (BleuConfig, {"smooth_value": 0.5}, "smooth_value is for floor and add-k"),
        (BleuConfig, {"smooth_method": "floor", "smooth_value": 2.0}, "floor takes at most 1"),
        (BleuConfig, {"smooth_method": "floor", "smooth_value": float("nan")}, "smooth_value"),
        (BleuConfig, {"tokenize": "spm"}, "tokenize"),
        (BleuConfig, {"reference": ""}, "reference"),
        (ChrfConfig, {"char_order": 0}, "char_order"),
        (ChrfConfig, {"beta": -1}, "beta"),
        (RougeConfig, {"variant": "rougeX"}, "variant"),
        (RougeConfig, {"measure": "fmeasure"}, "measure"),
        (RougeConfig, {"stemmer": True}, "stemmer"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(config, options, said) -> None:
    with pytest.raises(ValidationError, match=said):
        config(**options)


@pytest.mark.parametrize("provider", [Bleu, Chrf, Rouge])
def test_every_option_explains_itself(provider) -> None:
    properties = provider.Config.model_json_schema()["properties"]
    assert all(entry.get("description") for entry in properties.values())
    assert provider.description.endswith(".")


@pytest.mark.parametrize("provider", [Bleu, Chrf, Rouge])
def test_a_provider_travels_to_a_worker(provider, batch_of) -> None:
    sent = pickle.loads(pickle.dumps(provider(provider.Config())))
    sent.setup()
    assert sent.score(batch_of(["a cat sat on it"], ["a cat sat on it"])).scores[0] == 1.0


def test_the_readme_example_does_what_it_says(tmp_path, monkeypatch) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    code = readme.split("```python\n", 1)[1].split("```", 1)[0]
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    expected = readme.split("```text\n", 1)[1].split("```", 1)[0]
    assert done.stdout == expected
