"""``--check``: a run against installed plugins, its data and its folder. No model is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_core.config import MountConfig, RunConfig, load_run_config
from verl_core.config.check import check_run, examine
from verl_core.config.data import read_rows
from verl_core.config.provider import provider_config
from verl_core.plugins import PluginRegistry
from verl_reward_sdk import ConfigError

Load = Callable[..., RunConfig]
Check = Callable[..., list[str]]

PLUGIN = '''
from pydantic import Field, field_validator
from verl_reward_sdk import (
    AssetPath, ConfigError, ProviderConfig, RewardBatch, RewardProvider, hookimpl
)

VERL_REWARD_API = 1

class MatchConfig(ProviderConfig):
    reference: str = "ground_truth"
    floor: float = Field(default=0.0, ge=0.0)
    rules: AssetPath | None = None
    api_key: int | None = None
    mode: str = "plain"

    @field_validator("mode")
    @classmethod
    def known(cls, value: str) -> str:
        if value == "config-error":
            raise ConfigError("mode is not supported", hint="leave it out")
        if value == "crash":
            raise RuntimeError("boom")
        if value not in ("plain", "reads-crash"):
            raise ValueError(f"unknown mode {value}")
        return value

class Match(RewardProvider[MatchConfig]):
    """Equality with the reference."""
    name = "match"
    @property
    def reads(self) -> frozenset[str]:
        if self.config.mode == "reads-crash":
            raise KeyError("oops")
        return frozenset({self.config.reference})
    def score(self, batch: RewardBatch) -> list[float]:
        return [0.0] * len(batch)

@hookimpl
def verl_reward_providers():
    yield Match
'''


@pytest.fixture
def check(load: Load, tmp_path: Path, plugin_site: Any) -> Check:
    """``check(mounts, more, …)``: what `check_run` says of a run of these mounts, a line each."""
    plugin_site.add(
        "verl-reward-match",
        rewards={"match": "reward_match", "gone": "reward_gone", "sick": "reward_sick"},
        files={
            "reward_match.py": PLUGIN,
            "reward_sick.py": "VERL_REWARD_API = 1\nraise ImportError('no libfoo')\n",
        },
    )
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "ground_truth": "b", "level": 3}\n')

    def check(mounts: str, more: str = "", *overrides: str) -> list[str]:
        config = load(f"reward: [{mounts}]\n{more}", *overrides)
        problems = check_run(config, PluginRegistry(env={}))
        return [str(problem).replace(f"{tmp_path}/", "") for problem in problems]

    return check


def test_a_right_run_has_no_problems_and_torch_stays_unloaded(check: Check) -> None:
    loaded = "torch" in sys.modules
    assert check("{type: a, plugin: match}, {type: b, plugin: match, applies_to: level > 2}") == []
    assert ("torch" in sys.modules) is loaded


def test_an_unknown_plugin_is_named_with_the_nearest_or_what_brings_it(check: Check) -> None:
    [said] = check("{type: a, plugin: mtach}")
    assert said.startswith("run.yaml:3:28: reward.a.plugin: ")
    assert "match" in said
    [said] = check("{type: a, plugin: judge}")
    assert said.startswith("run.yaml:3:28: reward.a.plugin: ")
    assert "verl-reward-judge" in said


def test_a_plugin_that_fails_at_import_is_refused_where_it_is_named(check: Check) -> None:
    [said] = check("{type: a, plugin: sick}")
    assert said.startswith("run.yaml:3:28: reward.a.plugin: ")
    assert "no libfoo" in said


@pytest.mark.parametrize(
    ("kwargs", "column", "words"),
    [
        ("refrence: x", 49, "init_kwargs.refrence: unknown key | did you mean 'reference'?"),
        ("reference: 3", 60, "init_kwargs.reference: expected text, got 3"),
        ("floor: -1", 56, "init_kwargs.floor: must be at least 0, got -1"),
        ("rules: nowhere.yaml", 56, "init_kwargs.rules: no such file or folder: nowhere.yaml"),
        ("mode: odd", 55, "init_kwargs.mode: unknown mode odd"),
        ("mode: config-error", 35, "init_kwargs: mode is not supported (leave it out)"),
        ("mode: crash", 35, "RuntimeError: boom | a fault of the plugin"),
    ],
)
def test_a_bad_argument_of_a_plugin_is_located_in_the_yaml(
    check: Check, kwargs: str, column: int, words: str
) -> None:
    [said] = check(f"{{type: a, plugin: match, init_kwargs: {{{kwargs}}}}}")
    assert said.startswith(f"run.yaml:3:{column}: reward.a.init_kwargs")
    for word in words.split(" | "):
        assert word in said


def test_without_a_yaml_an_argument_is_named_by_its_path_and_a_caller_adds_the_place(
    check: Check, tmp_path: Path
) -> None:
    assert check("{type: a, plugin: match}") == []
    model = PluginRegistry(env={}).provider("match").Config
    mount = MountConfig(type="a", plugin="match", init_kwargs={"floor": -1})
    with pytest.raises(ConfigError) as caught:
        provider_config(model, mount, tmp_path)
    said = "reward.a.init_kwargs.floor: must be at least 0, got -1"
    assert str(caught.value) == said
    placed = caught.value.with_location(file="run.yaml", line=3, column=9)
    assert str(placed) == f"run.yaml:3:9: {said}"


def test_a_secret_argument_is_not_repeated(check: Check) -> None:
    [said] = check("{type: a, plugin: match, init_kwargs: {api_key: sk-123}}")
    assert "reward.a.init_kwargs.api_key" in said
    assert "sk-123" not in said


def test_a_relative_asset_counts_from_the_configs_folder(check: Check, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules: []\n")
    assert check("{type: a, plugin: match, init_kwargs: {rules: rules.yaml}}") == []


def test_a_provider_that_cannot_say_what_it_reads_is_a_problem_of_its_mount(check: Check) -> None:
    [said] = check("{type: a, plugin: match, init_kwargs: {mode: reads-crash}}")
    assert said.startswith("run.yaml:3:10: reward.a: the plugin 'match' raised KeyError")


def test_a_missing_column_names_the_mounts_that_read_it(check: Check) -> None:
    [said] = check(
        "{type: a, plugin: match, init_kwargs: {reference: groundtruth}}, "
        "{type: b, plugin: match, reads: [groundtruth]}"
    )
    assert said.startswith("prompts.jsonl:1: data.train: no row has the column 'groundtruth'")
    assert "'a', 'b' read" in said
    assert "did you mean 'ground_truth'?" in said


def test_a_column_that_a_condition_names_must_be_there_and_comparable(check: Check) -> None:
    [said] = check("{type: a, plugin: match, applies_to: levle > 2}")
    assert "no row has the column 'levle', which 'a' reads (did you mean 'level'?)" in said
    [said] = check("{type: a, plugin: match, applies_to: level > 'x'}")
    assert said.startswith("prompts.jsonl:1: 'a' cannot apply \"level > 'x'\" to this row")


def test_held_out_rows_are_checked_against_evaluations_mounts(check: Check, tmp_path: Path) -> None:
    (tmp_path / "held_out.jsonl").write_text('{"prompt": "a", "ground_truth": "b"}\n')
    evaluation = "eval_reward: {type: e, plugin: match, init_kwargs: {reference: gold}}\n"
    held_out = f"data.eval={tmp_path}/held_out.jsonl"
    [said] = check("{type: a, plugin: match}", evaluation, held_out)
    assert said.startswith("held_out.jsonl:1: data.eval: no row has the column 'gold', which 'e'")
    [said] = check("{type: a, plugin: match, reads: [level]}", "", held_out)
    assert said.startswith("held_out.jsonl:1: data.eval: no row has the column 'level'")


def test_bad_data_is_told_with_file_and_line(check: Check, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "ground_truth": 1}\nnope\n')
    [said] = check("{type: a, plugin: match}")
    assert said.startswith("prompts.jsonl:2:1: data.train: not JSON")
    [said] = check("{type: a, plugin: match}", "", "data.train=/nowhere/prompts.jsonl")
    assert said.startswith("/nowhere/prompts.jsonl: data.train: no such file")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("./models/tiny", "neither a folder nor a hub id | did you mean '.*tiny-1'?"),
        ("/nowhere/at/all", "neither a folder nor a hub id | there is no folder /nowhere/at"),
        ("a/b/c", "neither a folder nor a hub id"),
        ("owner/na me", "neither a folder nor a hub id"),
        ("prompts.jsonl", "is a file"),
    ],
)
def test_a_model_path_that_can_be_nothing_is_refused(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "tiny-1").mkdir(parents=True)
    [said] = check("{type: a, plugin: match}", "", f"model.path={path}")
    assert said.startswith("override 1: model.path: ")
    for word in words.split(" | "):
        assert word.replace(".*", f"{tmp_path}/models/").replace(f"{tmp_path}/", "") in said


@pytest.mark.parametrize(
    ("flow", "path", "words"),
    [
        ("{rollout: [actr], reward: [a], advantage: [grpo], update: [ppo]}",
         "dataflow.rollout[0]", "unknown node 'actr' | did you mean 'actor'?"),
        ("{rollout: [actor], reward: [aa], advantage: [grpo], update: [ppo]}",
         "dataflow.reward[0]", "unknown node 'aa' | did you mean 'a'?"),
        ("{rollout: [actor], reward: [a], advantge: [grpo], update: [ppo]}",
         "dataflow.advantge", "the stage 'advantage' is missing | did you mean 'advantage'?"),
        ("{rollout: [actor], mine: [a]}",
         "dataflow", "the stage 'reward' is missing | write reward: [your mounts]"),
        ("{rollout: [actor], reward: [a, a], advantage: [grpo], update: [ppo]}",
         "dataflow.reward[1]", "'a' runs in the stage 'reward' already"),
        ("{rollout: [actor], reward: [a], advantage: [rloo], update: [ppo]}",
         "dataflow.advantage[0]", "'rloo' comes in a later release"),
        ("{rollout: [actor], reward: [a], advantage: [{name: mine, node_class: mine.Node}], "
         "update: [ppo]}", "dataflow.advantage[0].node_class", "no module 'mine'"),
    ],
)  # fmt: skip
def test_a_wrong_stage_or_node_is_named(check: Check, flow: str, path: str, words: str) -> None:
    said = check("{type: a, plugin: match}", f"dataflow: {flow}\n")
    first = next(line for line in said if f" {path}: " in line)
    assert first.startswith("run.yaml:4:")
    for word in words.split(" | "):
        assert word in first


def test_a_mount_that_no_stage_runs_is_named(check: Check) -> None:
    flow = "{rollout: [actor], reward: [a], advantage: [grpo], update: [ppo]}"
    [said] = check("{type: a, plugin: match}, {type: b, plugin: match}", f"dataflow: {flow}\n")
    assert said.startswith("run.yaml:4:1: dataflow: no stage runs the mount 'b'")


def test_a_node_class_is_looked_up_without_importing_it(check: Check, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit\nclass ToneNode: pass\n")
    (tmp_path / "broken.py").write_text("class (:\n")
    assert check("{type: a, node_class: mine.ToneNode}") == []
    [said] = check("{type: a, node_class: mine.TonNode}")
    assert "reward.a.node_class: mine.py has no 'TonNode' (did you mean 'ToneNode'?)" in said
    [said] = check("{type: a, node_class: mien.ToneNode}")
    assert said.startswith("run.yaml:3:32: reward.a.node_class: no module 'mien'")
    assert "did you mean 'mine'?" in said
    [said] = check("{type: a, node_class: broken.Node}")
    assert said.startswith("broken.py:1: reward.a.node_class: not Python")
    assert check("{type: a, node_class: json.decoder.JSONDecoder}") == []


def test_an_extension_that_is_not_installed_is_named(check: Check) -> None:
    [said] = check("{type: a, plugin: match}", "plugins: [nowhere]\n")
    assert said.startswith("run.yaml:4:11: plugins[0]: ")
    assert "nowhere" in said


def test_everything_that_is_wrong_is_found_at_once(check: Check, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("{}\n")
    said = check(
        "{type: a, plugin: nothing}, {type: b, plugin: match, init_kwargs: {floor: -1}}, "
        "{type: c, node_class: no.Where}",
        "dataflow: {rollout: [actr]}\n",
        "model.path=./nowhere",
    )
    assert len(said) >= 6
    for path in ("reward.a.plugin", "reward.b.init_kwargs.floor", "reward.c.node_class"):
        assert any(f": {path}: " in line for line in said)
    for path in ("model.path", "data.train", "dataflow.rollout[0]"):
        assert any(f": {path}: " in line for line in said)


def test_the_rows_that_the_check_has_read_are_handed_over(check: Check, tmp_path: Path) -> None:
    assert check("{type: a, plugin: match}") == []  # writes the files
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text('{"prompt": "b", "ground_truth": "c"}\n', "utf-8")
    path = tmp_path / "run.yaml"
    config = load_run_config(path, [f"data.eval={held_out}"])
    examined = examine(config, PluginRegistry(env={}))
    assert examined.problems == []
    assert examined.train == read_rows(tmp_path / "prompts.jsonl")
    assert examined.held_out == read_rows(held_out)
    (tmp_path / "prompts.jsonl").write_text("", "utf-8")
    examined = examine(config, PluginRegistry(env={}))
    assert [problem.message for problem in examined.problems] == ["the file is empty"]
    assert not examined.train
