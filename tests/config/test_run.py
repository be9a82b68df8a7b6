"""A whole run: forms, defaults, places, and the resolved YAML."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from verl_core.config import (
    DefaultScore,
    FusionConfig,
    MountConfig,
    RewardsConfig,
    RunConfig,
    Threshold,
    load_run_config,
)

Load = Callable[..., RunConfig]

SEED = Path(__file__).resolve().parents[3] / "shared" / "seed" / "listing"
NEEDED = ("model.path=owner/name", "data.train=prompts.jsonl")

FULL = """\
reward:
  - {type: accuracy, plugin: rouge, weight: 1.0, init_kwargs: {reference: ground_truth}}
  - {type: tone, plugin: rules, weight: {linear: {from: 2.0, to: 0.5, steps: 200}},
     init_kwargs: {rules: tone.yaml, raw: "${x}", odd: ["1e-5", "yes", null, 1.0, {3: x}]}}
  - {type: guard, plugin: safety, role: gate, penalty: -1.0, threshold: {below: 0.5},
     severity: skip, init_kwargs: {words: words.txt}}
  - {type: custom, node_class: safety_reward.SafetyRewardNode, init_kwargs: {device: cpu},
     on_error: {default: 0.5}, clip: [0, 1], when: guard >= 0, safe_globals: [a.B], timeout: 5}
  - {type: late, plugin: rules, after: [guard], only_if: open, weight: {step: {from: 0,
     at: [[3, 1.5]]}}, applies_to: 'source == "math"', reads: [source]}
  - {type: far, plugin: rules, execution: process, workers: 2, retries: 3, retry_wait: 0.1,
     breaker: {failures: 3}, host: {name: api.example.com}, cache: {path: kept/scores.db}}
eval_reward:
  - {type: accuracy, plugin: rouge}
fusion: {policy: weighted_sum}
dataflow:
  rollout: [actor, ref_model]
  reward: [accuracy, tone, safety_reward, late]
  safety: [guard]
  shape: [{name: mine, node_class: mine.Node, init_kwargs: {k: 1}}]
  advantage: [grpo]
  update: [ppo]
server: {port: 8001}
"""


@pytest.mark.skipif(not SEED.is_dir(), reason="the seed document's listing is not here")
@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("config.yaml", ["safety_reward"]),
        ("config_multi.yaml", ["accuracy", "tone", "compliance"]),
    ],
)
def test_the_seed_documents_fragments_load_once_model_and_data_are_given(
    file: str, names: list[str]
) -> None:
    config = load_run_config(SEED / file, NEEDED)
    assert [mount.name for mount in config.reward] == names
    assert [mount.weight for mount in config.reward] == [1.0] * len(names)
    assert config.base_dir == SEED


@pytest.mark.skipif(not SEED.is_dir(), reason="the seed document's listing is not here")
def test_the_seed_documents_node_takes_its_arguments_from_the_command_line() -> None:
    config = load_run_config(
        SEED / "config.yaml",
        [
            *NEEDED,
            "reward.safety_reward.model_name=small",
            "reward.safety_reward.device=cpu",
            "reward.safety_reward.safe_globals=[classifier.Net, torch.nn.Linear]",
        ],
    )
    [mount] = config.reward
    assert mount.init_kwargs == {"model_name": "small", "device": "cpu"}
    assert mount.safe_globals == ("classifier.Net", "torch.nn.Linear")
    assert config.dataflow == {
        "rollout": ("actor", "ref_model"),
        "reward": ("safety_reward",),
        "advantage": ("gae",),
        "update": ("ppo",),
    }


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ("type: tone, plugin: rules", "tone"),
        ("type: tone, name: mood, plugin: rules", "mood"),
        ("name: mood, plugin: rules", "mood"),
        ("type: custom, node_class: safety_reward.SafetyRewardNode", "safety_reward"),
        ("type: custom, node_class: a.b.HTTPReward2Node", "http_reward2"),
        ("type: custom, node_class: a.Tone", "tone"),
        ("type: custom, node_class: a.B, name: mine", "mine"),
        ("type: accuracy, node_class: accuracy_reward.AccuracyRewardNode", "accuracy"),
        ("type: 准确性, plugin: rouge", "准确性"),
    ],
)
def test_a_mount_is_named_by_name_then_type_then_class(load: Load, keys: str, name: str) -> None:
    assert load(f"reward: {{{keys}}}\n").reward[0].name == name


def test_defaults_are_those_of_the_design(load: Load) -> None:
    config = load("reward: {type: tone, plugin: rules}\n")
    assert config.name == "run"
    assert config.fusion == FusionConfig(policy="weighted_sum", allow_zero=False)
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8000)
    assert config.trainer.reward_retries == 2
    [mount] = config.reward
    assert (mount.weight, mount.missing, mount.on_error) == (1.0, "neutral", "mask")
    assert (mount.max_error_rate, mount.timeout, mount.max_abandoned) == (0.5, 60.0, 3)


def test_values_are_frozen(load: Load) -> None:
    config = load("reward: {type: tone, plugin: rules}\n")
    with pytest.raises(ValidationError):
        config.seed = 3  # type: ignore[misc]


def test_the_name_is_the_files_made_fit_for_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "my run (1).yaml"
    path.write_text("reward: {type: tone, plugin: rules}\n")
    assert load_run_config(path, NEEDED).name == "my-run-1-"


def test_evaluation_scores_by_the_training_set_unless_told_otherwise(load: Load) -> None:
    config = load("reward: [{type: a, plugin: x}, {type: b, plugin: x}]\n")
    assert config.eval_rewards().mounts == config.reward
    config = load(FULL)
    assert [mount.name for mount in config.eval_rewards().mounts] == ["accuracy"]
    assert len(config.rewards().mounts) == 6


def test_evaluations_fusion_is_the_runs_unless_it_has_its_own(load: Load) -> None:
    text = "reward: {type: a, plugin: x}\nfusion: {allow_zero: true}\n"
    own = "eval_reward: {reward: {type: a, plugin: x}, fusion: {allow_zero: false}}\n"
    assert load(text + "eval_reward: {type: a, plugin: x}\n").eval_rewards().fusion.allow_zero
    assert not load(text + own).eval_rewards().fusion.allow_zero


def test_paths_count_from_the_configs_folder(load: Load, tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    head = (
        "model: {path: models/tiny, critic: owner/name}\ndata: {train: a/b.jsonl, eval: /c.jsonl}\n"
    )
    config = load("reward: {type: tone, plugin: rules}\n", head=head)
    assert config.data.train == tmp_path / "a" / "b.jsonl"
    assert config.data.eval == Path("/c.jsonl")
    assert config.model.path == str(tmp_path / "models" / "tiny")
    assert config.model.critic == "owner/name"
    assert config.rewards().base_dir == tmp_path


def test_base_dir_moves_the_folder_that_paths_count_from(load: Load, tmp_path: Path) -> None:
    config = load("base_dir: sub\nreward: {type: tone, plugin: rules}\n")
    assert config.data.train == tmp_path / "sub" / "prompts.jsonl"


def test_places_are_found_by_path_with_mounts_by_name(load: Load) -> None:
    config = load(FULL)
    assert config.locate("reward.accuracy.weight") == (4, 45)
    assert config.locate(("reward", 0, "weight")) == (4, 45)
    assert config.locate("reward.tone.init_kwargs.rules") == (6, 27)
    assert config.locate("reward.guard.init_kwargs") == (8, 22)
    assert config.locate("eval_reward.accuracy.plugin") == (16, 30)
    assert config.locate("dataflow.safety") == (21, 3)
    # what is not written is in its nearest parent
    assert config.locate("reward.accuracy.timeout") == (4, 5)


def test_an_error_found_later_can_point_at_the_yaml(load: Load, tmp_path: Path) -> None:
    config = load(FULL, "reward.tone.scale=2")
    error = config.error("reward.tone.init_kwargs.rules", "has no rules", hint="write some")
    place = f"{tmp_path}/run.yaml:6:27: reward.tone.init_kwargs.rules"
    assert str(error) == f"{place}: has no rules (write some)"
    assert str(config.error("reward.tone.scale", "bad")) == "override 1: reward.tone.scale: bad"
    assert config.locate("reward.tone.scale") is None


def test_the_resolved_yaml_is_the_same_run_from_any_folder(load: Load, tmp_path: Path) -> None:
    config = load(FULL, "reward.tone.scale=2", "optim.lr=1e-5")
    other = tmp_path / "runs" / "run" / "config.yaml"
    other.parent.mkdir(parents=True)
    other.write_text(config.to_yaml(), encoding="utf-8")
    again = load_run_config(other)
    assert again.model_dump() == config.model_dump()
    assert again.name == "run"
    assert again.base_dir == tmp_path
    assert again.to_yaml() == config.to_yaml()


def test_a_config_can_be_built_in_python() -> None:
    rewards = RewardsConfig(
        mounts=(
            MountConfig(type="tone", plugin="rules", on_error=DefaultScore(default=0.0)),
            MountConfig(
                name="guard",
                type="safety",
                plugin="safety",
                role="gate",
                penalty=-1.0,
                threshold=Threshold(above=0.5),
            ),
        )
    )
    assert [mount.name for mount in rewards.mounts] == ["tone", "guard"]
    assert rewards.mounts[0].on_error == DefaultScore(default=0.0)


def test_what_a_mount_waits_for_is_named_by_after_when_and_only_if() -> None:
    mount = MountConfig(
        type="a", plugin="x", after=("g",), only_if="g > 1", when="b > 1 and c == 0"
    )
    assert mount.depends_on == {"b", "c", "g"}


def test_python_cannot_build_what_yaml_could_not() -> None:
    tone = MountConfig(type="tone", plugin="rules")
    with pytest.raises(ValidationError, match="two mounts are called 'tone'"):
        RewardsConfig(mounts=(tone, tone))
    with pytest.raises(ValidationError, match="has no penalty"):
        MountConfig(type="guard", plugin="safety", role="gate")


def test_reading_a_config_imports_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FULL)
    code = (
        "import sys; from pathlib import Path\n"
        "from verl_core.config import load_run_config\n"
        "import verl_core.config.check\n"
        f"load_run_config(Path({str(path)!r}), {NEEDED!r})\n"
        "heavy = {'torch', 'transformers', 'numpy', 'fastapi'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_options_of_a_fusion_policy_are_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {path: owner/name}\ndata: {train: prompts.jsonl}\n"
        "reward: [{type: a, plugin: x}]\nfusion: {policy: constrained, bounds: {a: 0.5}}\n"
    )
    config = load_run_config(path, ["fusion.bounds.a=0.75", "fusion.rate=0.1"])
    assert config.fusion.options == {"bounds": {"a": 0.75}, "rate": 0.1}
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml())
    assert load_run_config(again).fusion == config.fusion
