"""A rule file becomes a `RuleSet`, or an error that names the place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from verl_reward_rules.conditions import Condition, Contains, Json, Length, Regex, Unit
from verl_reward_rules.reader import Value
from verl_reward_rules.ruleset import SOURCES, Rule, RuleSet, Source
from verl_reward_rules.source import read_yaml

#: RE2 gives up on a pattern whose program would take more; its own default.
REGEX_MEMORY = 8 * 1024 * 1024
UNITS = ("chars", "words", "sentences")

_SETTINGS = ("name", "points", "must", "must_not", "reason", "on", "negate", "ignore_case")
_KNOWS_CASE = ("regex", "contains", "contains_all")
_NOT_IN_RE2 = re.compile(r"\(\?[=!<]|\\[1-9]")


def load_rules(path: Path) -> RuleSet:
    """Read and compile the rules of a file.

    Raises:
        ConfigError: with file, line, column and the rule's name.
    """
    root = Value(read_yaml(path), path)
    fields = root.fields(("score", "rules"))
    if "rules" not in fields:
        raise root.error("there are no rules", "write rules: [...]")
    base, low, high = _score(fields.get("score"))
    lines: dict[str, int] = {}
    rules = tuple(_rule(value, lines) for value in fields["rules"].items())
    return RuleSet(rules=rules, base=base, low=low, high=high)


def _score(value: Value | None) -> tuple[float, float, float]:
    """``(base, min, max)``."""
    fields = {} if value is None else value.fields(("base", "min", "max"))
    low = fields["min"].number() if "min" in fields else 0.0
    high = fields["max"].number() if "max" in fields else 1.0
    if value is not None and low >= high:
        raise value.error(f"min is {low:g} and max is {high:g}: min must be less than max")
    if "base" not in fields:
        return min(max(0.0, low), high), low, high
    base = fields["base"].number()
    if not low <= base <= high:
        raise fields["base"].error(f"base is {base:g}, expected {low:g} (min) to {high:g} (max)")
    return base, low, high


def _rule(value: Value, lines: dict[str, int]) -> Rule:
    """One rule; `lines` holds the line of each name so far."""
    fields = value.fields((*_SETTINGS, *_CONDITIONS))
    if "name" not in fields:
        raise value.error("the rule has no name", "add name: a-short-name")
    name = _name(fields["name"], lines)
    path = f"rules.{name}"
    value = value.called(path)
    fields = {key: field.called(f"{path}.{key}") for key, field in fields.items()}
    condition = _condition(value, fields)
    points, duty = _effect(value, fields)
    on = fields["on"].choice(tuple(SOURCES)) if "on" in fields else "response"
    return Rule(
        name=name,
        condition=condition,
        points=points,
        duty=duty,
        reason=fields["reason"].text() if "reason" in fields else None,
        on=cast(Source, on),
        negate=_flag(fields, "negate"),
    )


def _name(value: Value, lines: dict[str, int]) -> str:
    name = value.text()
    # It becomes part of a metric's name.
    if not all(character.isalnum() or character in "-_." for character in name):
        raise value.error(
            f"the name {name!r} may hold letters, digits, - _ and . only", "tell more in reason:"
        )
    if name in lines:
        raise value.error(
            f"two rules are named {name!r}", f"the first stands in line {lines[name]}"
        )
    lines[name] = value.node.start_mark.line + 1
    return name


def _effect(
    value: Value, fields: Mapping[str, Value]
) -> tuple[float | None, Literal["must", "must_not"] | None]:
    """``(points, duty)``, of which one is None."""
    duties = [duty for duty in ("must", "must_not") if _flag(fields, duty)]
    if len(duties) == 2:
        raise fields["must_not"].error("a rule is either must or must_not")
    if not duties:
        if "points" not in fields:
            raise value.error("the rule has no points", "add points:, must: true or must_not: true")
        return fields["points"].number(), None
    if "points" in fields:
        raise fields["points"].error(
            f"a {duties[0]} rule has no points: it sets the lowest score", "make it two rules"
        )
    return None, cast(Literal["must", "must_not"], duties[0])


def _condition(value: Value, fields: Mapping[str, Value]) -> Condition:
    found = [key for key in fields if key in _CONDITIONS]
    if not found:
        raise value.error("the rule has no condition", f"add one of {', '.join(_CONDITIONS)}")
    if len(found) > 1:
        raise fields[found[1]].error(
            f"the rule has two conditions, {found[0]} and {found[1]}", "make it two rules"
        )
    kind = found[0]
    if "ignore_case" in fields and kind not in _KNOWS_CASE:
        raise fields["ignore_case"].error(
            f"{kind} does not look at case", f"ignore_case is for {', '.join(_KNOWS_CASE)}"
        )
    return _CONDITIONS[kind](fields[kind], _flag(fields, "ignore_case"))


def _flag(fields: Mapping[str, Value], key: str) -> bool:
    return fields[key].flag() if key in fields else False


def _regex(value: Value, ignore_case: bool) -> Condition:
    import re2  # type: ignore[import-untyped]

    pattern = value.text()
    options: Any = re2.Options()
    options.log_errors = False  # it would write to stderr beside the error that it raises
    options.max_mem = REGEX_MEMORY
    options.case_sensitive = not ignore_case
    try:
        return Regex(re2.compile(pattern, options=options))
    except re2.error as error:
        why = error.args[0] if error.args else "no reason given"
        told = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        hint = None
        if _NOT_IN_RE2.search(told):
            hint = "RE2 has no lookaround and no back-references; two rules, or negate, often do"
        raise value.error(f'RE2 refuses "{pattern}": {told}', hint) from error


def _contains(value: Value, ignore_case: bool) -> Condition:
    return Contains(value.texts(), every=False, ignore_case=ignore_case)


def _contains_all(value: Value, ignore_case: bool) -> Condition:
    return Contains(value.texts(), every=True, ignore_case=ignore_case)


def _length(value: Value, ignore_case: bool) -> Condition:
    fields = value.fields(("unit", "min", "max"))
    if "min" not in fields and "max" not in fields:
        raise value.error("the length has neither min nor max")
    unit = fields["unit"].choice(UNITS) if "unit" in fields else "chars"
    least = fields["min"].count() if "min" in fields else 0
    most = fields["max"].count() if "max" in fields else None
    if most is not None and most < least:
        raise fields["max"].error(f"max is {most}, less than min ({least})")
    return Length(cast(Unit, unit), least, most)


def _json(value: Value, ignore_case: bool) -> Condition:
    if not value.is_mapping:
        if not value.flag():
            raise value.error("json: false asks for nothing", "write json: true and negate: true")
        return Json(keys=())
    fields = value.fields(("keys",))
    if "keys" not in fields:
        raise value.error("json has no keys", "write json: true, or json: {keys: [...]}")
    return Json(keys=fields["keys"].texts())


_CONDITIONS: dict[str, Callable[[Value, bool], Condition]] = {
    "regex": _regex,
    "contains": _contains,
    "contains_all": _contains_all,
    "length": _length,
    "json": _json,
}
