"""What the manager is told when verl loads it: settings that are taken, refused, or said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.verl_kit import GATE, SEAM, rewards, score
from verl_core.integrations.verl import VerlRewardManager
from verl_reward_sdk import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_reward_that_needs_groups_is_refused_with_its_place(manager):
    with pytest.raises(ConfigError, match="compares the responses of a group") as caught:
        manager({"type": "tone", "plugin": "group_probe"})
    assert str(caught.value).startswith(str(Path(caught.value.file)))
    assert caught.value.path == "reward.tone"


def test_what_the_config_cannot_carry_is_refused_before_anything_is_loaded(manager, probe):
    with pytest.raises(ConfigError) as caught:
        manager({"type": "tone", "plugin": "probe", "missing": "mask", "on_error": "mask"})
    assert "verl cannot carry missing: mask" in str(caught.value)
    assert "verl cannot carry on_error: mask" in str(caught.value)
    assert probe() == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("reward.custom_reward_function.path=mine.py", "names a reward function beside"),
        ("reward.reward_model.enable=true", "verl never asks this manager"),
    ],
)
def test_verl_s_own_rewards_beside_the_manager_are_refused(verl_config, tokenizer, override, said):
    config = verl_config(*SEAM, "+reward.reward_kwargs.verl_reward.config=x.yaml", override)
    with pytest.raises(ConfigError, match=said):
        VerlRewardManager(config, tokenizer)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((), "nothing says which YAML holds the rewards"),
        (("config=/no/such.yaml",), "there is no such file"),
        (("config=a.yaml", "weight=1"), "did you mean 'weights'"),
    ],
)
def test_settings_that_cannot_be_used_say_what_to_write(
    verl_config, tokenizer, monkeypatch, settings, said
):
    monkeypatch.delenv("VERL_REWARD_CONFIG", raising=False)
    at = "+reward.reward_kwargs.verl_reward"
    config = verl_config(*SEAM, *(f"{at}.{setting}" for setting in settings))
    with pytest.raises(ConfigError, match=said):
        VerlRewardManager(config, tokenizer)


def test_the_config_may_be_named_by_the_environment_where_verl_s_says_nothing(
    tmp_path, probe, verl_config, tokenizer, row, monkeypatch
):
    path = tmp_path / "run.yaml"
    path.write_text("reward: {type: tone, plugin: probe}\n", "utf-8")
    monkeypatch.setenv("VERL_REWARD_CONFIG", str(path))
    for config in (None, verl_config(*SEAM)):
        loaded = VerlRewardManager(config, tokenizer)
        assert rewards(score(loaded, row("four"))) == [4.0]
        loaded.engine.close()


def test_overrides_win_over_the_file(manager, row):
    tone = {"type": "tone", "plugin": "probe"}
    loaded = manager(tone, settings=["overrides=['reward.tone.weight=5']"])
    assert rewards(score(loaded, row("four"))) == [20.0]


def test_what_differs_from_the_defaults_is_said_at_start(manager, caplog):
    manager({"type": "tone", "plugin": "probe"}, GATE)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "on_error: raise in place of mask (tone)" in text
    assert "unless missing: zero is written" in text
    assert "a row that a gate could not judge fails its prompt group (guard)" in text
