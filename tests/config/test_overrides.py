"""`key=value` after the YAML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config import RunConfig, WeightSchedule
from verl_core.config.document import parse_yaml
from verl_core.config.overrides import apply_overrides, parse_override
from verl_reward_sdk import ConfigError

Load = Callable[..., RunConfig]
Complain = Callable[..., list[str]]

RUN = """\
reward:
  - {type: tone, plugin: rules, weight: 1.0, init_kwargs: {rules: tone.yaml, scale: 3}}
  - type: custom
    node_class: safety_reward.SafetyRewardNode
    init_kwargs: {model_name: big, device: "cuda:0"}
optim: {betas: [0.9, 0.95]}
"""


def test_a_mount_is_addressed_by_its_name(load: Load) -> None:
    config = load(RUN, "reward.tone.weight=2", "reward.safety_reward.weight=0.5")
    assert [mount.weight for mount in config.reward] == [2.0, 0.5]


def test_a_single_mount_is_addressed_by_its_name_too(load: Load) -> None:
    config = load("reward: {type: tone, plugin: rules}\n", "reward.tone.weight=2")
    assert config.reward[0].weight == 2.0


def test_values_are_yaml(load: Load) -> None:
    config = load(
        RUN,
        "reward.safety_reward.safe_globals=[a.B, c.D]",
        "reward.tone.weight={linear: {from: 2, to: 0.5, steps: 200}}",
        "optim.lr=1e-6",
        "data.eval=null",
        "trainer.threads=",
        "trainer.eval_before=false",
        "name='007'",
        "optim.betas.1=0.99",
    )
    assert config.reward[1].safe_globals == ("a.B", "c.D")
    assert isinstance(config.reward[0].weight, WeightSchedule)
    assert config.reward[0].setting() == {
        "linear": {"from": 2.0, "to": 0.5, "steps": 200, "start": 0}
    }
    assert config.optim.lr == 1e-6
    assert config.optim.betas == (0.9, 0.99)
    assert config.data.eval is None
    assert config.trainer.threads is None
    assert config.trainer.eval_before is False
    assert config.name == "007"


def test_a_key_that_init_kwargs_hold_is_reached_without_naming_them(load: Load) -> None:
    config = load(RUN, "reward.safety_reward.model_name=small", "reward.safety_reward.device=cpu")
    assert config.reward[1].init_kwargs == {"model_name": "small", "device": "cpu"}


def test_a_key_of_the_mount_comes_before_one_of_its_init_kwargs(load: Load) -> None:
    config = load(RUN, "reward.tone.scale=2")
    assert config.reward[0].scale == 2.0
    assert config.reward[0].init_kwargs["scale"] == 3


def test_a_new_argument_is_written_whole(load: Load) -> None:
    config = load(RUN, "reward.tone.init_kwargs.strict=true", "reward.tone.init_kwargs.a.b=1")
    assert config.reward[0].init_kwargs == {
        "rules": "tone.yaml",
        "scale": 3,
        "strict": True,
        "a": {"b": 1},
    }


def test_the_last_override_of_a_key_wins(load: Load) -> None:
    assert load(RUN, "seed=1", "seed=2").seed == 2


def test_a_section_that_the_file_does_not_have_is_made(load: Load) -> None:
    config = load(
        RUN, "trainer.steps=3", "server.port=0", head="model: {path: a/b}\ndata:\n  train: x\n"
    )
    assert (config.trainer.steps, config.server.port) == (3, 0)


def test_a_whole_reward_may_be_given(load: Load) -> None:
    config = load(RUN, "reward={type: a, plugin: b}", "reward.a.weight=4")
    assert [(mount.name, mount.weight) for mount in config.reward] == [("a", 4.0)]


@pytest.mark.parametrize(
    "form",
    [
        "{type: tone, plugin: x}",
        "[{type: tone, plugin: x}]",
        "{reward: {type: tone, plugin: x}}",
        "{reward: [{type: tone, plugin: x}], fusion: {policy: weighted_sum}}",
    ],
)
@pytest.mark.parametrize("key", ["eval_reward.tone.weight", "eval_reward.reward.tone.weight"])
def test_evaluations_mounts_are_addressed_in_whichever_form(
    load: Load, form: str, key: str
) -> None:
    config = load(f"{RUN}eval_reward: {form}\n", f"{key}=7")
    assert config.eval_reward is not None
    assert config.eval_reward.reward[0].weight == 7.0


def test_evaluations_fusion_is_addressed(load: Load) -> None:
    config = load(
        f"{RUN}eval_reward: [{{type: tone, plugin: x}}]\n", "eval_reward.fusion.allow_zero=true"
    )
    assert config.eval_rewards().fusion.allow_zero


def test_a_path_on_the_command_line_counts_from_the_current_folder(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "model").mkdir(parents=True)
    monkeypatch.chdir(here)
    config = load(RUN, "data.eval=held_out.jsonl", "model.path=model")
    assert config.data.train == tmp_path / "prompts.jsonl"
    assert config.data.eval == here / "held_out.jsonl"
    assert config.model.path == str(here / "model")


def test_a_hub_id_on_the_command_line_stays_one(load: Load) -> None:
    assert load(RUN, "model.path=owner/other").model.path == "owner/other"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("reward.tonne.weight=2", "override 2: reward.tonne.weight: | 'tone'?"),
        ("reward.tone.wieght=2", "override 2: reward.tone.wieght: | did you mean 'weight'?"),
        ("reward.safety_reward.devise=cpu", "did you mean 'device'? | init_kwargs.devise="),
        ("reward.tone=2", "this is a whole mount | reward.tone.weight=2"),
        ("eval_reward.tone.weight=2", "the file has no eval_reward:"),
        ("trainer.stpes=3", "override 2: trainer.stpes: unknown key (did you mean 'steps'?)"),
        ("trainr.steps=3", "override 2: trainr.steps: unknown key (did you mean 'trainer'?)"),
        ("trainer.steps=three", "override 2: trainer.steps: expected a whole number, got 'three'"),
        ("trainer.steps='3'", "whole number, got '3' (write 3 without quotes)"),
        ("trainer.steps=-1", "override 2: trainer.steps: must be at least 1, got -1"),
        ("trainer={steps: 0}", "override 2: trainer.steps: must be at least 1, got 0"),
        ("name.first=x", "override 2: name.first: there is 'run', it has no key 'first'"),
        ("optim.betas.2=1", "it has no item '2'"),
        ("optim.betas.first=1", "it has no item 'first'"),
        ("trainer.steps", "override 2: cannot read 'trainer.steps' (write key=value"),
        ("=3", "cannot read '=3'"),
        ("a..b=3", "cannot read 'a..b=3'"),
        ("output=[x", "override 2: output: not YAML | quotes"),
        ("output=*x", "override 2: output: not YAML"),
        ("optim.lr=.nan", "override 2: optim.lr: .nan is not a number"),
        ("optim={lr: 1, lr: 2}", "override 2: optim: the key 'lr' stands here a second time"),
        ("output=!!python/name:os.system x", "override 2: output: the tag !!python/name:os.system"),
        ("reward.tone.penalty=-1", "override 2: reward.tone.penalty: | is a gate's"),
    ],
)
def test_an_override_that_cannot_be_used_is_named_by_number_and_key(
    complain: Complain, override: str, words: str
) -> None:
    [line] = complain(f"name: run\n{RUN}", "seed=1", override)
    for word in words.split(" | "):
        assert word in line


def test_bad_overrides_and_bad_lines_are_told_together(complain: Complain) -> None:
    lines = complain(f"{RUN}seed: x\n", "reward.tonne.weight=2", "trainer.steps=0")
    assert [line.partition(": ")[0] for line in lines] == [
        "run.yaml:9:7",
        "override 1",
        "override 2",
    ]


# -- properties -------------------------------------------------------------------------------

WORDS = st.from_regex(r"[a-z_][a-z0-9_]{0,7}", fullmatch=True)
PATHS = st.lists(WORDS, min_size=1, max_size=5)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(PATHS, JSON)
def test_a_json_value_is_read_as_itself(path: list[str], value: object) -> None:
    override = parse_override(f"{'.'.join(path)}={json.dumps(value)}", 1)
    assert override.keys == tuple(path)
    assert override.value.unwrap() == value


@given(st.lists(st.tuples(PATHS, st.integers(0, 9)), min_size=1, max_size=6))
def test_overrides_of_mappings_act_like_nested_assignment(
    changes: list[tuple[list[str], int]],
) -> None:
    root = parse_yaml("{}", "f.yaml")
    expected: dict[str, object] = {}
    refused = 0
    for path, value in changes:
        if path[0] in ("reward", "eval_reward"):
            continue
        node: object = expected
        for key in path[:-1]:
            node = node.setdefault(key, {}) if isinstance(node, dict) else node
        if isinstance(node, dict):
            node[path[-1]] = value
        else:
            refused += 1
    texts = [
        f"{'.'.join(path)}={value}"
        for path, value in changes
        if path[0] not in ("reward", "eval_reward")
    ]
    problems = apply_overrides(root, texts)
    assert len(problems) == refused
    assert root.unwrap() == expected


@given(st.text(max_size=40))
def test_any_text_is_an_override_or_a_config_error_that_numbers_it(text: str) -> None:
    message = "override 5: "
    try:
        parse_override(text, 5)
    except ConfigError as error:
        message = str(error)
    assert message.startswith("override 5: ")
