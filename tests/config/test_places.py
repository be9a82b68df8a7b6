"""Where an error about a setting points that nobody wrote: to no line, with its default."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from verl_core.config import RunConfig
from verl_core.config.places import located
from verl_reward_sdk import ConfigError

Load = Callable[..., RunConfig]
REWARD = "reward: [{type: tone, plugin: rules}]\n"


@pytest.fixture
def said(load: Load) -> Callable[..., str]:
    """``said(path, text, *overrides)``: an error at `path`, its folder cut off."""

    def said(path: str, text: str, *overrides: str) -> str:
        config = load(REWARD + text, *overrides)
        return str(config.error(path, "bad")).replace(f"{config.base_dir}/", "")

    return said


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("server.port", "server.port (default 8000)"),
        ("fusion.policy", "fusion.policy (default 'weighted_sum')"),
        ("trainer.threads", "trainer.threads (default null)"),
        ("server", "server (default)"),
    ],
)
def test_a_section_that_is_not_written_has_no_line(
    said: Callable[..., str], path: str, shown: str
) -> None:
    assert said(path, "seed: 3\n") == f"run.yaml: {shown}: bad"


def test_a_written_section_is_pointed_at_for_what_is_not_written_in_it(
    said: Callable[..., str],
) -> None:
    text = "server: {enabled: true}\n"
    assert said("server.port", text) == "run.yaml:4:1: server.port (default 8000): bad"
    assert said("data.shuffle", "") == "run.yaml:2:1: data.shuffle (default true): bad"
    assert said("reward.tone.timeout", "") == "run.yaml:3:10: reward.tone.timeout: bad"


def test_what_is_written_keeps_its_place_and_says_nothing_of_a_default(
    said: Callable[..., str],
) -> None:
    assert said("server.port", "server: {port: 8000}\n") == "run.yaml:4:16: server.port: bad"


def test_an_override_of_another_setting_is_not_blamed(said: Callable[..., str]) -> None:
    shown = "server.port (default 8000)"
    assert said("server.port", "", "server.enabled=true") == f"run.yaml: {shown}: bad"
    assert said("server.port", "", "server={enabled: true}") == f"override 1: {shown}: bad"
    assert said("server.port", "", "server.port=9") == "override 1: server.port: bad"


def test_a_name_that_comes_from_the_files_has_no_line(said: Callable[..., str]) -> None:
    assert said("name", "") == "run.yaml: name: bad"


def test_an_error_of_somebody_who_knows_the_path_alone_gets_the_file(load: Load) -> None:
    config = load(REWARD + "server: {host: localhost}\n")
    error = located(config.root, ConfigError("is taken", path="server.port", hint="another"))
    assert str(error).endswith("run.yaml:4:1: server.port (default 8000): is taken (another)")
    own = ConfigError("is empty", file="rules.yaml", line=3, path="reward.tone")
    assert str(located(config.root, own)) == "rules.yaml:3: reward.tone: is empty"
