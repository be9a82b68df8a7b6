"""What mounts and runs may be called, and that a name is the same however it is composed."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_core.config import MountConfig, RunConfig, load_run_config
from verl_reward_sdk import ConfigError

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
HEAD = "model: {path: hub/model}\ndata: {train: data.jsonl}\n"


def load(folder: Path, text: str, *overrides: str) -> RunConfig:
    path = folder / "run.yaml"
    path.write_text(HEAD + text, "utf-8")
    return load_run_config(path, overrides)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(folder, text)
    return str(refused.value)


def test_a_decomposed_name_is_the_composed_one_wherever_it_stands(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        f"""
name: {DECOMPOSED}
reward:
  - {{type: {DECOMPOSED}, plugin: rules}}
  - {{name: gate, plugin: safety, role: gate, penalty: -1, after: [{DECOMPOSED}],
      only_if: {DECOMPOSED} > 0}}
  - {{name: tone, plugin: rules, when: {DECOMPOSED} >= 1}}
dataflow:
  rollout: [actor]
  reward: [{DECOMPOSED}, gate, tone]
  advantage: [grpo]
  update: [ppo]
""",
        f"reward.{DECOMPOSED}.weight=2",
        f"reward.{COMPOSED}.timeout=3",
    )
    cafe, gate, tone = config.reward
    assert (config.name, cafe.name, cafe.weight, cafe.timeout) == (COMPOSED, COMPOSED, 2, 3)
    assert gate.after == (COMPOSED,)
    assert gate.depends_on == tone.depends_on == {COMPOSED}
    assert config.dataflow is not None
    assert config.dataflow["reward"][0] == COMPOSED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 300, "300 characters (300 bytes); it may have 100 (200 bytes)"),
        ("\u5ba2" * 90, "90 characters (270 bytes); it may have 100 (200 bytes)"),
        ("a/b", "'a/b' is no name of a folder"),
        ("..", "'..' is no name of a folder"),
        (".hidden", "'.hidden' is no name of a folder"),
        ("a\\nb", "'a\\nb' is no name of a folder"),
        ("a\\0b", "'a\\x00b' is no name of a folder"),
        ("run ", "'run ' is no name of a folder"),
        ("run.", "'run.' ends with a dot"),
        ("", "'' is no name of a folder"),
        ("a\\u200b", "'a\\u200b' is no name of a folder"),
    ],
)
def test_what_cannot_be_a_folder_is_no_name_of_a_run(tmp_path: Path, name: str, said: str) -> None:
    told = refusal(tmp_path, f'name: "{name}"\nreward: {{type: tone, plugin: rules}}\n')
    assert ": name: " in told
    assert said in told
    assert len(told) < 400


def test_a_long_name_within_the_bounds_can_be_a_folder_and_its_servers(tmp_path: Path) -> None:
    name = "\u5ba2" * 66 + "ab"
    config = load(tmp_path, f"name: {name}\nreward: {{type: tone, plugin: rules}}\n")
    (tmp_path / f"{config.name}-100.serve").mkdir()
    assert (tmp_path / f"{name}-100.serve").is_dir()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 300, "300 characters"),
        ("a\\n", "'a\\n' is no name: letters, digits, _ and -, a letter first"),
        ("a/b", "'a/b' is no name"),
        ("to\\u200bne", "'to\\u200bne' is no name"),
        (
            "fused",
            "the name 'fused' is taken by the log (call it something else, as in name: fused_",
        ),
    ],
)
def test_a_mount_with_a_name_that_cannot_be_is_told_what_to_write(
    tmp_path: Path, name: str, said: str
) -> None:
    told = refusal(tmp_path, f'reward: {{type: "{name}", plugin: rules}}\n')
    assert said in told
    assert "as in name: " in told
    assert ":)" not in told


def test_two_mounts_of_one_name_are_told_what_to_write(tmp_path: Path) -> None:
    one = "{type: tone, plugin: rules}"
    told = refusal(tmp_path, f"reward: [{one}, {one}]\n")
    assert "(call one of them something else, as in name: tone_2)" in told


@pytest.mark.parametrize("weight", ["1e308", "{linear: {from: 1, to: 2e6, steps: 3}}"])
def test_a_weight_beyond_the_bound_is_refused_with_it(tmp_path: Path, weight: str) -> None:
    told = refusal(tmp_path, f"reward: {{type: tone, plugin: rules, weight: {weight}}}\n")
    assert "must be at most 1e+06" in told
    assert MountConfig(type="tone", plugin="rules", weight=1e6).weight == 1e6
