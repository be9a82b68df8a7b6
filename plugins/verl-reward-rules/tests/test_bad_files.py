"""A rule file that cannot be used is refused with file, line, column, rule and reason."""

from __future__ import annotations

import pytest

from verl_reward_rules.load import load_rules
from verl_reward_sdk import ConfigError


def rule(settings: str) -> str:
    return f"rules:\n  - {{name: it, {settings}}}\n"


# ``§`` marks the place that the error must name.
BAD = [
    # regular expressions
    (rule("points: 1, regex: §'a('"), "rules.it.regex", "missing ): a("),
    (rule("points: 1, regex: §'(?=a)'"), "rules.it.regex", "no lookaround"),
    (rule(r"points: 1, regex: §'(a)\1'"), "rules.it.regex", "no back-references"),
    (rule(r"points: 1, regex: §'((a{99}){99})'"), "rules.it.regex", "repetition size"),
    (rule(r"points: 1, regex: §'(\pL{500}){2}'"), "rules.it.regex", "too large"),
    (rule("points: 1, regex: §''"), "rules.it.regex", "empty"),
    (rule(r'points: 1, regex: §"\ud800"'), "rules.it.regex", "surrogate"),
    # keys
    (rule("points: 1, §contain: x"), "rules[0]", "did you mean 'contains'"),
    ("§rulez: []", None, "did you mean 'rules'"),
    (rule("points: 1, contains: x, §points: 2"), "rules[0]", "'points' stands twice"),
    ("? §[a]\n: b", None, "unknown key a list"),
    ("§score: {}", None, "there are no rules"),
    # conditions
    ("rules:\n  - §{name: it, points: 1}", "rules.it", "no condition"),
    (rule("points: 1, contains: x, json: §true"), "rules.it.json", "two conditions"),
    (rule("points: 1, contains: §[]"), "rules.it.contains", "the list is empty"),
    (rule("points: 1, contains: [x, §'']"), "rules.it.contains[1]", "empty"),
    (rule("points: 1, contains: [§24]"), "rules.it.contains[0]", "quotes"),
    (rule("points: 1, contains: [§no]"), "rules.it.contains[0]", "a boolean (no)"),
    (rule("points: 1, contains: §{a: b}"), "rules.it.contains", "found a mapping"),
    (rule("points: 1, length: §{}"), "rules.it.length", "neither min nor max"),
    (rule("points: 1, length: {min: 3, max: §2}"), "rules.it.length.max", "less than min"),
    (rule("points: 1, length: {min: §-1}"), "rules.it.length.min", "0 or more"),
    (rule("points: 1, length: {min: §1.5}"), "rules.it.length.min", "whole number"),
    (rule("points: 1, length: {unit: §word, min: 1}"), "rules.it.length.unit", "'words'"),
    (rule("points: 1, json: §false"), "rules.it.json", "negate: true"),
    (rule("points: 1, json: §{}"), "rules.it.json", "json has no keys"),
    (rule("points: 1, json: true, ignore_case: §true"), "rules.it.ignore_case", "case"),
    # points, duties, switches
    ("rules:\n  - §{name: it, contains: x}", "rules.it", "no points"),
    (rule("contains: x, points: §.nan"), "rules.it.points", "finite number"),
    (rule("contains: x, points: §1e999"), "rules.it.points", "finite number"),
    (rule("contains: x, points: §'1'"), "rules.it.points", "without quotes"),
    (rule("contains: x, points: §true"), "rules.it.points", "a boolean (true)"),
    (rule("contains: x, points:§"), "rules.it.points", "found nothing"),
    (rule("contains: x, must: true, points: §1"), "rules.it.points", "has no points"),
    (rule("contains: x, must: true, must_not: §true"), "rules.it.must_not", "either"),
    (rule("contains: x, must: §yes"), "rules.it.must", "true or false"),
    (rule("contains: x, points: 1, negate: §1"), "rules.it.negate", "true or false"),
    (rule("contains: x, points: 1, on: §reply"), "rules.it.on", "none of response"),
    # names
    ("rules:\n  - §{contains: x, points: 1}", "rules[0]", "no name"),
    ("rules:\n  - {name: §a b, contains: x, points: 1}", "rules[0].name", "letters"),
    (
        rule("contains: x, points: 1") + "  - {name: §it, contains: y, points: 1}",
        "rules[1].name",
        "the first stands in line 2",
    ),
    # score
    ("score: §{min: 1}\n" + rule("contains: x, points: 1"), "score", "less than max"),
    ("score: {base: §2}\n" + rule("contains: x, points: 1"), "score.base", "0 (min)"),
    ("score: {min: §a}\n" + rule("contains: x, points: 1"), "score.min", "found 'a'"),
    ("score: §1\n" + rule("contains: x, points: 1"), "score", "a mapping"),
    # shape and syntax
    ("rules: §[]", "rules", "the list is empty"),
    ("rules: §it", "rules", "expected a list"),
    ("§- it", None, "expected a mapping"),
    ("rules: [§", None, "stream end"),
    ("rules:\n§\t- a", None, "'\\t'"),
    ("--- a\n§--- b", None, "another document"),
    ("rules: §\x07", None, "not allowed in YAML"),
    ("", None, "the file is empty"),
    ("# nothing\n", None, "the file is empty"),
    # YAML that is a weapon
    ("a: &a [x]\nrules: [§*a, *a]", None, "alias *a"),
    ("rules: §!!python/object/apply:os.system [ls]", None, "python/object"),
    ("rules: " + "[" * 31 + "§" + "[" * 69 + "]" * 100, None, "levels of nesting"),
    (rule("points: 1, §<<: {contains: x}"), "rules[0]", "unknown key '<<'"),
]


@pytest.mark.parametrize(("marked", "where", "said"), BAD)
def test_the_place_and_the_reason_are_named(tmp_path, capfd, marked, where, said) -> None:
    path = tmp_path / "tone.yaml"
    path.write_text(marked.replace("§", ""), encoding="utf-8")
    before, mark, _ = marked.partition("§")
    line = before.count("\n") + 1 if mark else None
    column = len(before) - before.rfind("\n") if mark else None
    with pytest.raises(ConfigError) as caught:
        load_rules(path)
    error = caught.value
    assert said in str(error)
    assert (error.file, error.line, error.column, error.path) == (str(path), line, column, where)
    assert capfd.readouterr() == ("", "")  # RE2 would write to stderr


@pytest.mark.parametrize(
    ("raw", "line", "said"),
    [
        (b"rules:\n- \xff\n", 2, "byte 0xff is not UTF-8"),
        ("rules: []".encode("utf-16"), 1, "not UTF-8"),
        (b"#" * (1024 * 1024 + 1), None, "more than 1024 KiB"),
    ],
)
def test_a_file_that_is_no_rule_file_is_refused(tmp_path, raw, line, said) -> None:
    path = tmp_path / "tone.yaml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=said) as caught:
        load_rules(path)
    assert caught.value.line == line


def test_a_folder_is_no_rule_file(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot read the rule file"):
        load_rules(tmp_path)


def test_yaml_that_is_only_unusual_is_read(tmp_path) -> None:
    path = tmp_path / "tone.yaml"
    path.write_text(
        "\ufeffrules:\r\n- name: 问候\r\n  'on': response\r\n  contains: |\r\n    hello\r\n"
        "  points: 1e-1\r\n- {name: b, on: prompt, must: true, contains: 'no'}\r\n",
        encoding="utf-8",
    )
    loaded = load_rules(path)
    assert [rule.name for rule in loaded.rules] == ["问候", "b"]
    assert [rule.on for rule in loaded.rules] == ["response", "prompt"]
    assert loaded.rules[0].points == 0.1
