"""The keys of a run's YAML: ``verl-reward info --config`` and docs/config.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_core.cli.main import main
from verl_core.cli.reference import TOP, chosen, markdown, sections
from verl_core.config import MountConfig, RunConfig
from verl_core.config.sections import RolloutConfig, TrainerConfig
from verl_reward_sdk import ConfigError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text("utf-8") == markdown(sections()), (
        "make it anew: python -m verl_core.cli.reference > docs/config.md"
    )


def test_every_key_of_every_model_is_there_with_a_description() -> None:
    found = {section.name: {key.key: key for key in section.keys} for section in sections()}
    for name, model in (
        (TOP, RunConfig),
        ("rollout", RolloutConfig),
        ("trainer", TrainerConfig),
        ("reward", MountConfig),
    ):
        assert set(model.model_fields) <= set(found[name]), name
    assert set(found) - {TOP} <= set(RunConfig.model_fields)
    assert all(key.description for section in sections() for key in section.keys)
    required = {key.key for key in found[TOP].values() if key.default is None}
    assert required == {"model", "data", "reward"}
    assert {"tolerance", "bounds", "rate"} <= set(found["fusion"])


@pytest.mark.parametrize(
    ("wanted", "section", "keys"),
    [
        ("rollout.n", "rollout", ["n"]),
        ("seed", TOP, ["seed"]),
        ("reward.weight", "reward", ["weight"]),
        ("reward.tone.weight", "reward", ["weight"]),
        ("reward.cache", "reward", ["cache", "cache.rows", "cache.path"]),
    ],
)
def test_one_key_can_be_asked_for(wanted: str, section: str, keys: list[str]) -> None:
    [found] = chosen(wanted)
    assert (found.name, [key.key for key in found.keys]) == (section, keys)


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [("rollot", "rollout"), ("rollout.temprature", "rollout.temperature"), ("sed", "seed")],
)
def test_what_is_not_there_names_the_nearest(wanted: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=nearest):
        chosen(wanted)


def test_the_command_shows_a_section_all_of_them_and_json(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["info", "--config", "optim"]) == 0
    shown = capsys.readouterr().out
    assert "optim:" in shown
    assert "Learning rate of the policy." in shown
    assert "rollout" not in shown
    assert main(["info", "--config"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}:" in shown for name in ("rollout", "reward", "tracking"))
    assert "required" in shown
    assert main(["info", "--config", "rollout.n", "--json"]) == 0
    [section] = json.loads(capsys.readouterr().out)
    assert section["keys"][0]["default"] == "8"


def test_info_without_a_name_says_what_it_needs(capsys) -> None:
    assert main(["info"]) == 2
    assert "info needs the name of a reward" in capsys.readouterr().err
