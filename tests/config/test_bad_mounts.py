"""Each way of getting a reward, a gate or their schedules wrong: one line that names the mount, the
key and what is right.

A case is (text, at, path, words), as `check` takes them.
"""

from __future__ import annotations

import pytest

from tests.config.conftest import GATE, SCORED, TONE, Complain, check


@pytest.mark.parametrize(
    ("keys", "at", "path", "words"),
    [
        ("wieght: 2", "wieght", "tone.wieght", "unknown key | did you mean 'weight'?"),
        ("weight: '2'", "'2'", "tone.weight", "expected a number or a schedule | 2 without quotes"),
        ("weight: true", "true", "tone.weight", "{cosine: …} or {step: …}), got true"),
        ("weight: null", "null", "tone.weight", "expected a number or a schedule | got null"),
        ("weight: linear", "linear", "tone.weight", "expected a number or a schedule ({linear: "),
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
        ("retries: 3, retry_wait: 100, timeout: 60", "100", "tone.retry_wait",
         "no retry waits longer than 10 s, got 100 | after 60 s | write 10 or less"),
        ("retries: 3, retry_wait: 9, timeout: 8", "9", "tone.retry_wait",
         "no retry can begin in time: the first waits at least 9 s | after 8 s"),
        ("retries: 1, timeout: 0.5", "1,", "tone.retries", "at least 0.5 s | after 0.5 s"),
        ("breaker: {failures: 0}", "0}", "tone.breaker.failures", "at least 1, got 0"),
        ("host: {concurrency: 2}", "host", "tone.host.name", "missing"),
        ("cache: {row: 5}", "row", "tone.cache.row", "did you mean 'rows'?"),
        ("execution: thred", "thred", "tone.execution", "did you mean 'thread'?"),
        ("normalize: grup", "grup", "tone.normalize", "did you mean 'group'?"),
        ("on_error: ignore", "ignore", "tone.on_error", "'raise' or {default: x}, got 'ignore'"),
        ("on_error: default", "default", "tone.on_error", "or {default: x}, got 'default'"),
        ("on_error: {defalt: 1}", "defalt", "tone.on_error.defalt", "did you mean 'default'?"),
        ("safe_globals: [a.B, c]", "c]", "tone.safe_globals[1]", "module.Class, got 'c'"),
        ("node_class: a.B", "a.B", "tone.node_class", "exclude each other"),
        ("when: 1 >", "1 >", "tone.when", "no condition: expected a name or a value at char"),
        ("when: tone > 1", "tone > 1", "tone.when", "cannot wait for itself"),
        ("applies_to: x = 1", "x = 1", "tone.applies_to", "write == for equality"),
        ("only_if: a > 1", "a > 1", "tone.only_if", "needs after:"),
    ],
)  # fmt: skip
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
