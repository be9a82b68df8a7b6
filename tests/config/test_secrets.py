"""Secrets among a plugin's arguments: the plugin gets them, nobody else sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import AliasChoices, Field, Secret, SecretStr, field_validator

from verl_core.config import MountConfig, RunConfig, load_run_config
from verl_core.config.provider import provider_config
from verl_core.config.secrets import MARK, secret_paths
from verl_reward_sdk import ConfigError, ProviderConfig

KEY = "sk-very-secret"


class Endpoint(ProviderConfig):
    url: str
    key: SecretStr | None = None


class JudgeConfig(ProviderConfig):
    api_key: SecretStr
    model: str = "small"
    endpoints: list[Endpoint] = Field(default_factory=list)
    headers: dict[str, Annotated[SecretStr, Field(min_length=2)]] = Field(default_factory=dict)
    other: Secret[int] | None = Field(
        default=None, validation_alias=AliasChoices("other", "another")
    )

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model == "loud":
            raise ValueError(f"no model for the key {KEY}")
        return model


ARGUMENTS: dict[str, Any] = {
    "api_key": KEY,
    "model": "small",
    "endpoints": [{"url": "http://a", "key": "sk-a-secret"}, {"url": "http://b"}],
    "headers": {"X-Auth": "sk-header-secret"},
    "another": 123456,
}


def run_config(folder: Path, arguments: dict[str, Any]) -> RunConfig:
    mount = {"type": "judge", "plugin": "judge", "init_kwargs": arguments}
    text = {
        "model": {"path": "hub/model"},
        "data": {"train": "data.jsonl"},
        "reward": mount,
        "eval_reward": mount,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(text, sort_keys=False), "utf-8")
    return load_run_config(path)


def read(mount: MountConfig, **tree: Any) -> JudgeConfig:
    settings = provider_config(JudgeConfig, mount, Path("."), **tree)
    assert isinstance(settings, JudgeConfig)
    return settings


def test_every_secret_is_found_nested_and_under_its_alias() -> None:
    assert set(secret_paths(JudgeConfig, ARGUMENTS)) == {
        ("api_key",),
        ("endpoints", 0, "key"),
        ("headers", "X-Auth"),
        ("another",),
    }


def test_the_plugin_gets_them_and_the_resolved_config_does_not(tmp_path: Path) -> None:
    config = run_config(tmp_path, ARGUMENTS)
    assert config.eval_reward is not None
    for mount in (*config.reward, *config.eval_reward.reward):
        settings = read(mount)
        assert settings.api_key.get_secret_value() == KEY
        assert settings.endpoints[0].key == SecretStr("sk-a-secret")
        assert settings.other is not None
        assert settings.other.get_secret_value() == 123456
    text = config.to_yaml()
    for secret in (KEY, "sk-a-secret", "sk-header-secret", "123456"):
        assert secret not in text
    assert text.count(MARK) == 8
    assert "http://a" in text
    assert "model: small" in text
    assert config.reward[0].init_kwargs == ARGUMENTS


def test_a_config_whose_secrets_were_left_out_says_so_and_takes_them_again(tmp_path: Path) -> None:
    config = run_config(tmp_path, {"api_key": KEY})
    read(config.reward[0])
    assert config.eval_reward is not None
    read(config.eval_reward.reward[0])
    written = tmp_path / "config.yaml"
    written.write_text(config.to_yaml(), "utf-8")
    again = load_run_config(written)
    with pytest.raises(ConfigError) as refused:
        read(again.reward[0], root=again.root, at=("reward", 0))
    assert "config.yaml:" in str(refused.value)
    assert "reward.judge.init_kwargs.api_key: a secret stood here" in str(refused.value)
    given = load_run_config(written, [f"reward.judge.init_kwargs.api_key={KEY}"])
    assert read(given.reward[0]).api_key.get_secret_value() == KEY


@pytest.mark.parametrize(
    "arguments",
    [
        {"api_key": KEY, "model": "loud"},
        {"api_key": [KEY]},
        {"api_key": {"a": KEY}},
        {"api_key": KEY, "headers": {"X-Auth": [KEY]}},
        {"api_key": KEY, "endpoints": [{"url": 1, "key": KEY}]},
        {"api_key": KEY, "another": KEY},
    ],
)
def test_an_error_does_not_repeat_a_secret(tmp_path: Path, arguments: dict[str, Any]) -> None:
    config = run_config(tmp_path, arguments)
    with pytest.raises(ConfigError) as refused:
        read(config.reward[0], root=config.root, at=("reward", 0))
    assert "reward.judge.init_kwargs" in str(refused.value)
    assert KEY not in str(refused.value)
    assert KEY not in config.to_yaml().split("eval_reward")[0]


def test_what_is_no_secret_is_written_as_it_is(tmp_path: Path) -> None:
    config = run_config(tmp_path, {"api_key": KEY, "model": "token"})
    read(config.reward[0])
    assert config.reward[0].shown_kwargs() == {"api_key": MARK, "model": "token"}
    plain = MountConfig(type="rules", plugin="rules", init_kwargs={"api_key": "x"})
    assert plain.shown_kwargs() == {"api_key": "x"}
