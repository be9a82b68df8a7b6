"""Each way of getting a run's YAML wrong: one line that names the place and what is right.

A case is (text, at, path, words): the message must point at the line and column where `at` stands
in the text, name the YAML path, and hold the words.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_core.config import RunConfig, load_run_config
from verl_reward_sdk import ConfigError

Load = Callable[..., RunConfig]
Complain = Callable[..., list[str]]

TONE = "type: tone, plugin: rules"
GATE = "type: g, plugin: safety, role: gate"
SCORED = "reward: {type: tone, plugin: rules}\n"


def check(complain: Complain, text: str, at: str, path: str, words: str) -> None:
    """Exactly one line of the message points at `at` and names `path`; it holds each of `words`,
    which are separated by `` | ``."""
    before = text[: text.index(at)]
    line = 3 + before.count("\n")  # two lines stand before every text
    column = len(before) - (before.rfind("\n") + 1) + 1
    place = f"run.yaml:{line}:{column}: {path}: "
    lines = complain(text)
    [said] = [line for line in lines if line.startswith(place)] or [f"{place}?? {lines}"]
    for word in words.split(" | "):
        assert word in said


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
        (SCORED + "dataflow: {update: [3]}\n", "3", "dataflow.update[0]", "expected text, got 3"),
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


@pytest.mark.parametrize(
    ("keys", "at", "path", "words"),
    [
        ("wieght: 2", "wieght", "tone.wieght", "unknown key | did you mean 'weight'?"),
        ("weight: '2'", "'2'", "tone.weight", "expected a number, got '2' | 2 without quotes"),
        ("weight: true", "true", "tone.weight", "expected a number, got true"),
        ("weight: null", "null", "tone.weight", "expected a number, got null"),
        ("weight: -0.5", "-0.5", "tone.weight", "must be at least 0, got -0.5"),
        ("init_kwargs: [a]", "init_kwargs", "tone.init_kwargs", "expected a mapping"),
        ("timeout: 0", "0", "tone.timeout", "greater than 0"),
        ("scale: 0", "0", "tone.scale", "must not be 0"),
        ("clip: [1, 0]", "clip", "tone.clip", "1 is not below 0"),
        ("max_error_rate: 1.5", "1.5", "tone.max_error_rate", "at most 1, got 1.5"),
        ("execution: ray", "ray", "tone.execution", "later release | 'process'"),
        ("workers: 0", "0", "tone.workers", "at least 1, got 0"),
        ("execution: inline, workers: 2", "2}", "tone.workers", "not for an inline mount"),
        ("retries: 1.5", "1.5", "tone.retries", "expected a whole number"),
        ("retry_wait: 2", "2}", "tone.retry_wait", "needs retries:"),
        ("breaker: {failures: 0}", "0}", "tone.breaker.failures", "at least 1, got 0"),
        ("host: {concurrency: 2}", "host", "tone.host.name", "missing"),
        ("cache: {row: 5}", "row", "tone.cache.row", "did you mean 'rows'?"),
        ("execution: thred", "thred", "tone.execution", "did you mean 'thread'?"),
        ("normalize: grup", "grup", "tone.normalize", "did you mean 'group'?"),
        ("on_error: ignore", "ignore", "tone.on_error", "'mask', 'abstain' or 'raise'"),
        ("on_error: {defalt: 1}", "defalt", "tone.on_error.defalt", "did you mean 'default'?"),
        ("safe_globals: [a.B, c]", "c]", "tone.safe_globals[1]", "module.Class, got 'c'"),
        ("node_class: a.B", "a.B", "tone.node_class", "exclude each other"),
        ("when: 1 >", "1 >", "tone.when", "no condition: expected a name or a value at char"),
        ("when: tone > 1", "tone > 1", "tone.when", "cannot wait for itself"),
        ("applies_to: x = 1", "x = 1", "tone.applies_to", "write == for equality"),
        ("only_if: a > 1", "a > 1", "tone.only_if", "needs after:"),
    ],
)
def test_a_bad_key_of_a_mount_is_named_by_the_mounts_name(
    complain: Complain, keys: str, at: str, path: str, words: str
) -> None:
    text = f"reward:\n  - {{{TONE},\n     {keys}}}\n"
    check(complain, text, at, f"reward.{path}", words)


@pytest.mark.parametrize(
    ("weight", "at", "path", "words"),
    [
        ("{cosine: {from: 1, steps: 3}}", "cosine", "cosine.to", "missing"),
        ("{cosnie: {from: 1}}", "cosnie", "cosnie", "did you mean 'cosine'?"),
        ("{liner: {from: 1}}", "liner", "liner", "did you mean 'linear'?"),
        ("{linear: {from: 1, to: 2, step: 3}}", "step", "linear.step", "did you mean 'steps'?"),
        ("{linear: {from: 1, steps: 3}}", "linear", "linear.to", "missing"),
        ("{linear: {from: 1, to: -2, steps: 3}}", "-2", "linear.to", "at least 0, got -2"),
        ("{linear: {from: 1, to: 2, steps: 0}}", "0}", "linear.steps", "at least 1, got 0"),
        ("{step: {from: 1, at: []}}", "at", "step.at", "at least 1 items, got 0"),
        ("{step: {from: 1, at: [[1]]}}", "[1]", "step.at[0][1]", "missing"),
        ("{step: {from: 1, at: [[9, 1], [9, 2]]}}", "[9, 2]", "step.at[1]", "9 does not come aft"),
    ],
)
def test_a_bad_schedule_is_told_within_its_mount(
    complain: Complain, weight: str, at: str, path: str, words: str
) -> None:
    text = f"reward:\n  - {{{TONE}, weight:\n      {weight}}}\n"
    check(complain, text, at, f"reward.tone.weight.{path}", words)


@pytest.mark.parametrize("weight", ["{}", "{linear: {from: 1, to: 1, steps: 1}, step: {from: 1}}"])
def test_a_schedule_is_of_one_kind(complain: Complain, weight: str) -> None:
    text = f"reward: [{{{TONE}, weight: {weight}}}]\n"
    words = "a schedule is one of linear or cosine or step"
    check(complain, text, "weight", "reward.tone.weight", words)


@pytest.mark.parametrize(
    ("item", "name", "words"),
    [
        ("type: tone", "reward.tone", "nothing says what scores 'tone' | plugin: | node_class:"),
        ("plugin: rules", "reward[0]", "type:"),
        ("type: custom", "reward[0]", "type: custom needs node_class"),
        ("name: my tone, " + TONE, "reward.my tone", "'my tone' is no name"),
        ("type: fused, plugin: rules", "reward.fused", "taken by the log"),
        (GATE, "reward.g", "the gate 'g' has no penalty | a number below 0"),
    ],
)
def test_a_mount_that_lacks_something_is_pointed_at(
    complain: Complain, item: str, name: str, words: str
) -> None:
    text = f"reward:\n  - {{{TONE.replace('tone', 'first')}}}\n  - {{{item}}}\n"
    check(complain, text, "{" + item, name.replace("[0]", "[1]"), words)


@pytest.mark.parametrize(
    "key",
    [
        "penalty: -1",
        "threshold: {below: 1}",
        "severity: skip",
        "skip_update: false",
        "in_baseline: true",
        "fail_open: true",
    ],
)
def test_what_only_a_gate_has_is_refused_on_a_reward(complain: Complain, key: str) -> None:
    name = key.partition(":")[0]
    lines = complain(f"reward: [{{{TONE}, {key}}}]\n")
    assert len(lines) == 1
    assert f"reward.tone.{name}: {name}: is a gate's, and 'tone' is none" in lines[0]
    assert "role: gate" in lines[0]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("weight: 1.0", "a gate has no weight (its penalty: is what counts)"),
        ("weight: {linear: {from: 1, to: 2, steps: 3}}", "a gate has no weight"),
        ("on_error: mask", "a gate has no on_error (fail_open: decides for a gate)"),
        ("missing: zero", "a gate has no missing"),
        ("max_error_rate: 1.0", "a gate has no max_error_rate"),
        ("penalty: 0", "must be less than 0, got 0"),
        ("penalty: 1", "must be less than 0, got 1"),
        ("threshold: {below: 1, above: 2}", "give either below: or above:"),
        ("threshold: {}", "give either below: or above:"),
        ("severity: none", "expected 'penalty', 'veto' or 'skip'"),
    ],
)
def test_what_a_gate_cannot_have_is_refused(complain: Complain, key: str, words: str) -> None:
    penalty = "" if key.startswith("penalty") else "penalty: -1, "
    lines = complain(f"reward: [{{{TONE}}}, {{{GATE}, {penalty}{key}}}]\n")
    assert len(lines) == 1
    assert f"reward.g.{key.partition(':')[0]}: {words}" in lines[0]


@pytest.mark.parametrize(
    ("items", "at", "path", "words"),
    [
        (
            [TONE, TONE],
            "{type: tone, plugin: rules} # 1",
            "tone",
            "two mounts are called 'tone' (numbers 1 and 2) | name:",
        ),
        ([TONE, "type: b, plugin: x, when: tonne > 1"], "tonne", "b.when", "did you mean 'tone'?"),
        ([TONE, "type: b, plugin: x, after: [tne]"], "after", "b.after", "did you mean 'tone'?"),
        (
            [TONE, "type: b, plugin: x, after: [tone], only_if: open"],
            "open",
            "b.only_if",
            "'tone' is no gate | a condition on its score",
        ),
        (
            [TONE, "type: c, plugin: x", "type: b, plugin: x, after: [tone], only_if: c > 1"],
            "c > 1",
            "b.only_if",
            "'c' is not among after: | known: tone",
        ),
        (
            [
                "type: a, plugin: x, when: b > 1",
                "type: b, plugin: x, after: [c]",
                "type: c, plugin: x, when: a > 1",
            ],
            "{type: a",
            "a",
            "in a circle: a -> b -> c -> a",
        ),
    ],
)
def test_mounts_that_do_not_fit_together_are_refused(
    complain: Complain, items: list[str], at: str, path: str, words: str
) -> None:
    text = "reward:\n" + "".join(f"  -  {{{item}}} # {i}\n" for i, item in enumerate(items))
    check(complain, text, at, f"reward.{path}", words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"reward: [{{{TONE}, weight: 0}}]\n", "every weight is 0 | allow_zero: true"),
        (f"reward: [{{{GATE}, penalty: -1}}]\n", "only gates"),
    ],
)
def test_a_reward_that_rewards_nothing_is_refused(
    complain: Complain, text: str, words: str
) -> None:
    check(complain, text, "reward", "reward", words)


@pytest.mark.parametrize(
    ("text", "at", "path", "words"),
    [
        ("[{type: x, plugin: y, wieght: 1}]", "wieght", "x.wieght", "did you mean 'weight'?"),
        ("{type: x, plugin: y, wieght: 1}", "wieght", "x.wieght", "did you mean 'weight'?"),
        (
            "{reward: {type: x, plugin: y}, fusion: {polic: z}}",
            "polic",
            "fusion.polic",
            "did you mean 'policy'?",
        ),
        ("[{type: x, plugin: y}, {type: x, plugin: z}]", "{type: x, plugin: z", "x", "two mounts"),
        ("3", "3", "", "expected a mapping"),
    ],
)
def test_a_bad_eval_reward_is_told_like_a_bad_reward(
    complain: Complain, text: str, at: str, path: str, words: str
) -> None:
    check(
        complain, SCORED + f"eval_reward:\n  {text}\n", at, f"eval_reward.{path}".rstrip("."), words
    )


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
