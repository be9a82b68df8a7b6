"""The plugin as the loader, the command line and a config meet it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pydantic import ValidationError

import verl_reward_rules
from verl_reward_rules import Rules, RulesConfig
from verl_reward_sdk import ConfigError


def test_importing_it_loads_no_library_of_its_field() -> None:
    code = (
        "import sys, verl_reward_rules as plugin; list(plugin.verl_reward_providers());"
        "print([m for m in ('re2', 'yaml', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_entry_point_names_the_provider() -> None:
    (entry,) = entry_points(group="verl_reward", name="rules")
    assert entry.value == "verl_reward_rules"
    assert [p.name for p in verl_reward_rules.verl_reward_providers()] == ["rules"]
    assert verl_reward_rules.VERL_REWARD_API == 1


def test_the_rule_file_is_found_beside_the_config_and_is_its_asset(tmp_path) -> None:
    (tmp_path / "tone.yaml").write_text("rules: [{name: a, contains: x, points: 1}]")
    config = RulesConfig.model_validate({"rules": "tone.yaml"}, context={"base_dir": tmp_path})
    assert Rules(config).assets() == (tmp_path / "tone.yaml",)
    assert Rules(config).reads == frozenset()


@pytest.mark.parametrize(
    ("options", "said"), [({}, "rules"), ({"rules": "gone.yaml"}, "no such file or folder: .*gone")]
)
def test_a_config_that_cannot_be_is_refused_by_name(tmp_path, options, said) -> None:
    with pytest.raises(ValidationError, match=said):
        RulesConfig.model_validate(options, context={"base_dir": tmp_path})


def test_building_the_provider_reads_nothing(tmp_path) -> None:
    path = tmp_path / "tone.yaml"
    path.write_text("rules: [{name: a, contains: x}]")
    provider = Rules(RulesConfig(rules=path))
    with pytest.raises(ConfigError, match=r"tone\.yaml:1:9: rules\.a: the rule has no points"):
        provider.setup()


def test_the_provider_travels_to_a_worker(tmp_path, batch_of) -> None:
    path = tmp_path / "tone.yaml"
    path.write_text("rules: [{name: a, regex: x, points: 1}]")
    sent = pickle.loads(pickle.dumps(Rules(RulesConfig(rules=path))))
    sent.setup()
    assert list(sent.score(batch_of(["x", ""])).scores) == [1.0, 0.0]


def test_every_option_explains_itself() -> None:
    properties = RulesConfig.model_json_schema()["properties"]
    assert all(entry.get("description") for entry in properties.values())


def test_the_readme_example_does_what_it_says(tmp_path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    block = readme.split("`tone.yaml`:\n\n```yaml\n", 1)[1].split("```", 1)[0]
    (tmp_path / "tone.yaml").write_text(block, encoding="utf-8")
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


def test_the_mistake_in_the_readme_is_told_as_the_readme_says(tmp_path, monkeypatch) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    told = readme.split("with its place:\n\n```text\n", 1)[1].split("\n```", 1)[0]
    block = readme.split("`tone.yaml`:\n\n```yaml\n", 1)[1].split("```", 1)[0]
    (tmp_path / "tone.yaml").write_text(
        block.replace(r"(?i)\b(hello|thank)", "(?=x)"), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        Rules(RulesConfig(rules=Path("tone.yaml"))).setup()
    assert str(caught.value) == told
