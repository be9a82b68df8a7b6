"""What is wrong with a config, as `ConfigError`s that point at the YAML and name what is right.

Pydantic finds most of it; its errors are put into words here: the place (file, line, column), the
YAML path with mounts by name, the offending value, the bound, and the nearest right key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from verl_core.config.base import OrForm
from verl_core.config.places import error_at, shown_path, shown_value
from verl_core.config.tree import Node, YamlPath
from verl_reward_sdk.errors import ConfigError, did_you_mean

_NUMBER = re.compile(r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")


#: Words that the design names and this release does not run yet, by key.
_LATER: Mapping[str, tuple[str, ...]] = {
    "execution": ("ray",),
    "backend": ("vllm", "openai_server"),
}

#: Keys of other trainers, and what stands for them here.
_ELSEWHERE: Mapping[str, str] = {
    "adv_estimator": "dataflow: has it: advantage: [grpo], [gdpo], or [gae], which is PPO with a "
    "critic",
    "reward_model": "a reward is a mount: reward: - {type: NAME, plugin: PLUGIN}",
    "custom_reward_function": "a reward of your own is a plugin, or type: custom with node_class:",
    "use_kl_loss": "algorithm: {kl_coef: 0.001, kl_in: loss}",
    "use_kl_in_reward": "algorithm: {kl_coef: 0.001, kl_in: reward}",
    "num_generations": "rollout: {n: 8}",
    "beta": "algorithm: {kl_coef: 0.001}",
}


@dataclass(frozen=True)
class Finding:
    """Something that a validator of ours found: where, below the model that it validates."""

    path: YamlPath
    message: str
    hint: str = ""


def refuse(findings: Sequence[Finding]) -> None:
    """In a pydantic validator: raise these findings; nothing where there are none."""
    if findings:
        text = "; ".join(
            ": ".join(filter(None, [".".join(map(str, f.path)), f.message]))
            + (f" ({f.hint})" if f.hint else "")
            for f in findings
        )
        raise PydanticCustomError("findings", "{text}", {"text": text, "findings": tuple(findings)})


class ConfigErrors(ConfigError):
    """Several things are wrong: a line each. `problems` holds them one by one."""

    def __init__(
        self, message: str, *, problems: Iterable[ConfigError] = (), **places: Any
    ) -> None:
        super().__init__(message, **places)
        self.problems = tuple(problems)


def combined(problems: Sequence[ConfigError]) -> ConfigError:
    """One error that says them all: by file and line, then overrides. `problems` is not empty."""
    flat = [one for problem in problems for one in getattr(problem, "problems", ()) or (problem,)]
    unique = list({str(problem): problem for problem in flat}.values())
    if len(unique) == 1:
        return unique[0]
    files = list(dict.fromkeys(problem.file for problem in unique))

    def place(problem: ConfigError) -> tuple[int, int, float, int]:
        override = re.fullmatch(r"override (\d+)", problem.file or "")
        first = (1, int(override[1])) if override else (0, files.index(problem.file))
        return *first, problem.line or math.inf, problem.column or 0

    unique.sort(key=place)
    return ConfigErrors("\n".join(str(problem) for problem in unique), problems=unique)


def raise_all(problems: Sequence[ConfigError]) -> None:
    """Raise `combined(problems)`; nothing where there are none."""
    if problems:
        raise combined(problems)


def problems_of(
    error: ValidationError, model: type[BaseModel], root: Node, at: YamlPath = ()
) -> list[ConfigError]:
    """Put pydantic's errors into words.

    Args:
        error: what validating the value at `at` raised.
        model: the model that it was validated as.
        root: the tree that was validated.
        at: where the validated value lies in it.
    """
    return [
        problem
        for details in error.errors(include_url=False)
        for problem in _problem(details, model, root, at)
    ]


def _problem(
    details: ErrorDetails, model: type[BaseModel], root: Node, at: YamlPath
) -> Iterator[ConfigError]:
    path = _path_of(details, root, at)
    if details["type"] == "findings":
        for finding in details["ctx"]["findings"]:
            yield error_at(root, path + finding.path, finding.message, hint=finding.hint)
        return
    if details["type"] == "extra_forbidden":
        node, _ = root.find(path)
        key = str(path[-1])
        hint = _ELSEWHERE.get(key) or did_you_mean(key, known_keys(model, path[len(at) : -1]))
        problem = error_at(root, path, "unknown key", hint=hint)
        if node.key_origin is not None:
            problem.line, problem.column = node.key_origin.line, node.key_origin.column
        yield problem
        return
    node, depth = root.find(path)
    if details["type"] == "missing":
        where = shown_path(root, path)
        hint = "" if "[" in where else f"write it in the file, or {where}=… on the command line"
        if where == "reward":  # too much for a command line
            hint = "write at least one mount under reward:, as `verl-reward info NAME` shows it"
        yield error_at(root, path, "missing: a value is required", hint=hint)
        return
    if details["type"] == "too_short" and isinstance(node.value, list):
        few = len(node.value) < details["ctx"]["min_length"]
        if not few:  # its items are bad, which is told already; pydantic counts the good ones
            return
    value = shown_value(node, path) if depth == len(path) else "nothing"
    other = _other_form(model, path[len(at) :])
    message, hint = _words(details, path, value, node, other)
    yield error_at(root, path, message, hint=hint)


def _path_of(details: ErrorDetails, root: Node, at: YamlPath) -> YamlPath:
    """Pydantic's place without the tags of unions, which are no keys of the YAML."""
    path, node = at, root.find(at)[0]
    parts = list(details["loc"])
    for index, part in enumerate(parts):
        child = node.child(part)
        if child is not None:
            path, node = (*path, part), child
        elif index == len(parts) - 1 and details["type"] in ("missing", "extra_forbidden"):
            path = (*path, part)
    return path


def known_keys(model: type[BaseModel], path: YamlPath) -> list[str]:
    """The keys that may stand at `path` of `model`, as they are written."""
    return [key for one in _models_at(model, path) for key, _ in _fields(one)]


def _models_at(model: type[BaseModel], path: YamlPath) -> list[type[BaseModel]]:
    models = [model]
    for part in path:
        found = [
            inner
            for one in models
            for key, info in _fields(one)
            if key == part
            for inner in _models_in(info.annotation)
        ]
        models = found or models  # an index or a free key: still the models of that field
    return models


def _other_form(model: type[BaseModel], path: YamlPath) -> str:
    """`` or {default: x}``: the form beside those that the error names; empty where there is none.

    Of an item of a list (``dataflow.update[0]``), that of the list's items.
    """
    keys = [place for place, part in enumerate(path) if isinstance(part, str)]
    for place in reversed(keys):
        fields = [
            info
            for one in _models_at(model, path[:place])
            for key, info in _fields(one)
            if key == path[place]
        ]
        if fields:
            found = [form for info in fields for form in _forms_of(info, path[place + 1 :])]
            return f" or {found[0].text}" if found else ""
    return ""


def _forms_of(info: FieldInfo, below: YamlPath) -> Iterator[OrForm]:
    if not below:
        yield from (one for one in info.metadata if isinstance(one, OrForm))
    elif isinstance(below[-1], int):
        yield from _forms_in(info.annotation)


def _forms_in(annotation: Any) -> Iterator[OrForm]:
    if isinstance(annotation, OrForm):
        yield annotation
    for argument in get_args(annotation):
        yield from _forms_in(argument)


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        yield info.alias or name, info


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_KINDS: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping (key: value)",
    "mapping_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
}


def _words(
    details: ErrorDetails, path: YamlPath, value: str, node: Node, other: str
) -> tuple[str, str]:
    """The message and the hint of one of pydantic's errors.

    Args:
        other: the form beside those that pydantic names, or nothing.
    """
    context: Mapping[str, Any] = details.get("ctx") or {}
    kind = details["type"]
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"must be {words} {context[key]:g}, got {value}", ""
    if kind in _KINDS:
        return f"expected {_KINDS[kind]}{other}, got {value}", _conversion_hint(kind, node)
    if kind == "literal_error":
        expected = str(context["expected"])
        names = re.findall(r"'([^']*)'", expected)
        if path and node.value in _LATER.get(str(path[-1]), ()):
            return f"{value} comes in a later release", f"this one has {expected}"
        hint = did_you_mean(str(node.value), names)
        return f"expected {expected}{other}, got {value}", hint if hint.startswith("did") else ""
    if kind == "finite_number":
        return f"must be finite, got {value}", ""
    if kind in ("too_short", "too_long"):
        least, most = context.get("min_length"), context.get("max_length")
        bound = f"at least {least}" if kind == "too_short" else f"at most {most}"
        return f"must have {bound} items, got {context['actual_length']}", ""
    if kind in ("string_too_short", "string_too_long"):
        least, most = context.get("min_length"), context.get("max_length")
        bound = f"at least {least}" if kind == "string_too_short" else f"at most {most}"
        return f"must have {bound} characters, got {value}", ""
    if kind == "value_error":
        return f"{context.get('error', details['msg'])}", ""
    message = details["msg"]
    return f"{message[:1].lower()}{message[1:]}, got {value}", ""


def _conversion_hint(kind: str, node: Node) -> str:
    value = node.value
    if not isinstance(value, str) or node.written is not None:
        return ""
    if kind == "bool_type" and value.casefold() in ("yes", "on", "no", "off", "true", "false"):
        return f"write {str(value.casefold() in ('yes', 'on', 'true')).lower()}"
    if kind in ("int_type", "float_type") and _NUMBER.match(value):
        return f"write {value.strip()} without quotes"
    return ""


ModelT = TypeVar("ModelT", bound=BaseModel)


def validate(model: type[ModelT], root: Node, context: Mapping[str, Any]) -> ModelT:
    """Validate the whole tree.

    Raises:
        ConfigError: all that is wrong.
    """
    try:
        return model.model_validate(root.unwrap(), context=dict(context))
    except ValidationError as error:
        raise combined(problems_of(error, model, root)) from None
