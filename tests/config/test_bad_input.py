"""Each way of getting a run's YAML wrong: one line that names the place and what is right.

A case is (text, at, path, words), as `check` takes them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.conftest import GATE, SCORED, TONE, Complain, Load, check
from verl_core.config import load_run_config
from verl_reward_sdk import ConfigError


@pytest.mark.parametrize(
    ("text", "at", "path", "words"),
    [
        ("rewards: x\n", "rewards", "rewards", "unknown key | did you mean 'reward'?"),
        ("trainer: {stpes: 3}\n", "stpes", "trainer.stpes", "did you mean 'steps'?"),
        ("fusion: {polcy: x}\n", "polcy", "fusion.polcy", "did you mean 'policy'?"),
        ("server: {}\nq: 2\n", "q", "q", "unknown key"),
        (
            "algorithm: {adv_estimator: grpo}\n",
            "adv_estimator",
            "algorithm.adv_estimator",
            "unknown key | dataflow: has it: advantage: [grpo], [gdpo], or [gae], which is PPO "
            "with a critic",
        ),
    ],
)
def test_an_unknown_key_names_the_nearest_one(
    complain: Complain, text: str, at: str, path: str, words: str
) -> None:
    check(complain, text, at, path, words)


@pytest.mark.parametrize(
    ("text", "at", "path", "words"),
    [
        ("trainer: {steps: '3'}\n", "'3'", "trainer.steps", "whole number, got '3' | without quot"),
        ("trainer: {steps: 3.5}\n", "3.5", "trainer.steps", "whole number, got 3.5"),
        ("trainer: {steps: true}\n", "true", "trainer.steps", "whole number, got true"),
        ("optim: {lr: fast}\n", "fast", "optim.lr", "expected a number, got 'fast'"),
        ("optim: {lr: false}\n", "false", "optim.lr", "expected a number, got false"),
        ("server: {enabled: yes}\n", "yes", "server.enabled", "true or false | write true"),
        ("server: {enabled: 1}\n", "1", "server.enabled", "true or false, got 1"),
        ("server: {host: 127}\n", "127", "server.host", "expected text, got 127"),
        ("server: {host: null}\n", "null", "server.host", "expected text, got null"),
        ("server: 8000\n", "8000", "server", "expected a mapping | got 8000"),
        ("optim:\n  betas: 0.9\n", "0.9", "optim.betas", "expected a list, got 0.9"),
        ("optim:\n  betas: [0.9, x]\n", "x", "optim.betas[1]", "expected a number, got 'x'"),
        ("optim:\n  betas: [0, 0, 0]\n", "betas", "optim.betas", "at most 2 items, got 3"),
        ("reward: tone\n", "tone", "reward", "expected a list, got 'tone'"),
        ("reward: [tone]\n", "tone", "reward[0]", "expected a mapping"),
        ("plugins: [a, 1]\n", "1", "plugins[1]", "expected text, got 1"),
        (SCORED + "dataflow: {rollout: actor}\n", "actor", "dataflow.rollout", "a list"),
        (
            SCORED + "dataflow: {update: [3]}\n",
            "3",
            "dataflow.update[0]",
            "expected text or {name: …, node_class: module.Class}, got 3",
        ),
    ],
)
def test_a_wrong_type_is_refused_and_nothing_is_converted(
    complain: Complain, text: str, at: str, path: str, words: str
) -> None:
    check(complain, text, at, path, words)


@pytest.mark.parametrize(
    ("text", "at", "path", "words"),
    [
        ("trainer: {steps: 0}\n", "0", "trainer.steps", "must be at least 1, got 0"),
        ("server: {port: 70000}\n", "70000", "server.port", "at most 65535, got 70000"),
        ("rollout: {top_p: 0}\n", "0", "rollout.top_p", "must be greater than 0, got 0"),
        ("optim: {betas: [0.9, 1]}\n", "1]", "optim.betas[1]", "must be less than 1, got 1"),
        ("seed: -1\n", "-1", "seed", "must be at least 0, got -1"),
        (SCORED + "name: a/b\n", "a/b", "name", "'a/b' is no name of a folder"),
        ("output: ''\n", "''", "output", "at least 1 characters"),
        (SCORED + "dataflow: {rollout: []}\n", "rollout", "dataflow.rollout", "at least 1 items"),
        ("rollout: {dtype: bf16}\n", "bf16", "rollout.dtype", "'float32' or 'bfloat16'"),
        ("rollout: {dtype: bfloat61}\n", "bfl", "rollout.dtype", "did you mean 'bfloat16'?"),
        ("rollout: {backend: vllm}\n", "vllm", "rollout.backend", "later release | 'hf'"),
    ],
)
def test_a_value_out_of_bounds_is_told_with_its_bound(
    complain: Complain, text: str, at: str, path: str, words: str
) -> None:
    check(complain, text, at, path, words)


def test_the_bad_line_is_the_only_one_that_is_told(complain: Complain) -> None:
    text = f"reward: [{{{TONE}, weight: {{linear: {{from: 1, to: x, steps: 3}}}}}}]\n"
    assert complain(text) == [
        "run.yaml:3:69: reward.tone.weight.linear.to: expected a number, got 'x'"
    ]


def test_all_that_is_wrong_is_told_at_once_in_the_order_of_the_file(complain: Complain) -> None:
    text = f"reward: [{{{TONE}, wieght: 2}}, {{{GATE}}}]\n"
    text += "trainer:\n  steps: '3'\n  sped: 1\nserver: {port: -1}\n"
    assert [line.split(": ")[1] for line in complain(text)] == [
        "reward.tone.wieght",
        "reward.g",
        "trainer.steps",
        "trainer.sped",
        "server.port",
    ]


def test_missing_parts_are_named_by_the_key_that_supplies_them(complain: Complain) -> None:
    lines = complain(SCORED, head="")
    assert len(lines) == 2
    assert "model.path: missing" in lines[0]
    assert "model.path=… on the command line" in lines[0]
    assert "data.train: missing" in lines[1]


def test_an_empty_file_is_a_run_in_which_everything_is_missing(complain: Complain) -> None:
    lines = complain("", head="")
    assert [line.split(": ")[1] for line in lines] == ["model.path", "data.train", "reward"]


def test_a_yaml_that_is_no_mapping_is_refused(complain: Complain) -> None:
    [line] = complain("- a\n- b\n", head="")
    assert line.startswith("run.yaml:1:1: expected a mapping")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: &a [*a]\n", "3:4", "alias"),
        ("x: !!python/object/apply:os.system [ls]\n", "3:4", "!!python/object/apply:os.system"),
        ("seed: 1\nseed: 2\n", "4:1", "'seed' stands here a second time"),
        ("optim: {lr: .nan}\n", "3:13", ".nan"),
        (b"name: \xff\n", "3:7", "not UTF-8"),
    ],
)
def test_dangerous_yaml_is_refused_with_line_and_column(
    complain: Complain, text: str | bytes, place: str, words: str
) -> None:
    [line] = complain(text)
    assert line.startswith(f"run.yaml:{place}: ")
    assert words in line


def test_a_secret_is_never_repeated(complain: Complain) -> None:
    text = f"reward: [{{{TONE}, on_error: {{default: 1, api_key: sk-123}}}}]\n"
    assert "sk-123" not in "\n".join(complain(text, "server.token=sk-123"))


def test_a_right_file_is_not_refused(load: Load) -> None:
    config = load(f"reward: [{{{TONE}}}, {{{GATE}, penalty: -1, threshold: {{below: 1}}}}]\n")
    assert [mount.name for mount in config.reward] == ["tone", "g"]
    assert [mount.is_gate for mount in config.reward] == [False, True]


GAE = "dataflow: {rollout: [actor], reward: [tone], advantage: [gae], update: [ppo]}\n"


@pytest.mark.parametrize(
    ("flow", "name"),
    [("", "grpo"), (GAE.replace("gae", "grpo"), "grpo"), (GAE.replace("gae", "gdpo"), "gdpo")],
)
def test_one_response_a_prompt_is_refused_where_advantages_compare_them(
    complain: Complain, flow: str, name: str
) -> None:
    [line] = complain(f"reward: {{{TONE}}}\n{flow}rollout: {{n: 1}}\n")
    assert f"rollout.n: must be at least 2 for {name}, got 1" in line
    assert "gae" in line


def test_one_response_a_prompt_is_enough_for_gae(load: Load) -> None:
    assert load(f"reward: {{{TONE}}}\n{GAE}", "rollout.n=1").rollout.n == 1


def test_a_file_that_is_not_there_has_another_run_suggested_and_no_list_of_rules(
    tmp_path: Path,
) -> None:
    (tmp_path / "tone.yaml").write_text("rules: []\n", "utf-8")
    (tmp_path / "tone.jsonl").write_text("{}\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_run_config(tmp_path / "tune.yaml")
    assert caught.value.hint is None
    (tmp_path / "tuned.yaml").write_text("name: x\nreward:\n  - {type: a}\n", "utf-8")
    with pytest.raises(ConfigError, match=r"did you mean '.*tuned\.yaml'"):
        load_run_config(tmp_path / "tune.yaml")


def test_an_empty_file_is_told_what_a_command_line_cannot_say(complain: Complain) -> None:
    lines = complain("", head="")
    assert [line.split(": ")[1] for line in lines] == ["model.path", "data.train", "reward"]
    assert "reward=" not in lines[2]
    assert "verl-reward info" in lines[2]


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("optim: {lr: 1\nseed: 2\n", "the { opened in line 3, column 8 has no } up to here"),
        ("plugins: [a,\n b\n", "the [ opened in line 3, column 10 has no ] up to here"),
    ],
)
def test_an_unclosed_bracket_is_told_where_it_was_opened(
    complain: Complain, text: str, opened: str
) -> None:
    [line] = complain(text)
    assert opened in line


def test_a_mapping_of_names_is_told_to_be_a_list(complain: Complain) -> None:
    head = "model: {path: m}\ndata: {train: t.jsonl}\n"
    [said] = complain("reward: {helpful: {plugin: rules}}\n", head=head)
    assert "a mount needs type:" in said
    assert "a list of mounts: - {type: helpful, plugin: …}" in said
