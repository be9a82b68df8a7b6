"""A plugin's secret is in no answer, log, error or file that a run makes."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.rewards import RewardEngine
from verl_reward_sdk import ConfigError, ProviderError, RewardError

KEY = "sk-very-secret"
JUDGE = """
from pydantic import SecretStr
from verl_reward_sdk import ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1


class JudgeConfig(ProviderConfig):
    api_key: SecretStr
    fails: str = ""


class Judge(RewardProvider[JudgeConfig]):
    name = "judge"
    execution = "inline"

    def __init__(self, config):
        super().__init__(config)
        self.fail("__init__")

    def fail(self, place):
        if self.config.fails == place:
            raise RuntimeError("401 for " + self.config.api_key.get_secret_value())

    def setup(self):
        self.fail("setup")

    def score(self, batch):
        self.fail("score")
        return [float(len(self.config.api_key.get_secret_value()))] * len(batch)


@hookimpl
def verl_reward_providers():
    yield Judge
"""


@pytest.fixture
def judge(plugin_site):
    """An installed plugin that takes a secret; makes an engine that mounts it."""
    plugin_site.add("judge-dist", rewards={"judge": "judge_mod"}, files={"judge_mod.py": JUDGE})

    def build(fails=""):
        arguments = {"api_key": KEY, "fails": fails}
        mount = MountConfig(type="judge", plugin="judge", init_kwargs=arguments)
        return RewardEngine.from_config(RewardsConfig(mounts=(mount,)))

    return build


def test_the_provider_has_it_and_the_description_does_not(judge, kit):
    with judge() as engine:
        assert engine.score(kit.batch(1)).fused.tolist() == [float(len(KEY))]
        assert KEY not in json.dumps(engine.describe())


def test_a_failure_that_repeats_it_is_told_without_it(judge, kit, caplog):
    caplog.set_level(logging.DEBUG)
    with judge("score") as engine:
        with pytest.raises(RewardError) as refused:
            engine.score(kit.batch(1))
        (described,) = engine.describe()
    assert "401 for **********" in described["last_error"]
    assert "401 for **********" in str(refused.value)
    assert KEY not in json.dumps(described) + str(refused.value) + caplog.text


@pytest.mark.parametrize("place", ["__init__", "setup"])
def test_a_provider_that_cannot_be_made_is_refused_without_it(judge, caplog, place):
    with pytest.raises((ConfigError, ProviderError)) as refused:
        judge(place).setup()
    assert "401 for **********" in str(refused.value)
    assert KEY not in str(refused.value) + caplog.text


def test_it_is_in_no_file_of_a_runs_folder(tiny_run, plugin_site):
    plugin_site.add("judge-dist", rewards={"judge": "judge_mod"}, files={"judge_mod.py": JUDGE})
    mount = {"type": "judge", "plugin": "judge", "init_kwargs": {"api_key": KEY}}
    tiny_run.config["reward"].append(mount)
    tiny_run.config["eval_reward"] = [{**mount, "type": "held_out"}]
    folder = tiny_run.train("trainer.steps=1")
    text = (folder / "config.yaml").read_text("utf-8")
    assert text.count("api_key: '**********'") == 2
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path.name for path in files if KEY.encode() in path.read_bytes()] == []
