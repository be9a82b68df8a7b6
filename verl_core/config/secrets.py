"""Secrets among a plugin's arguments: used, and shown nowhere.

A plugin declares a secret as a field of pydantic's `SecretStr` (or `SecretBytes`, `Secret[…]`) in
its `Config`. What stands there in `init_kwargs` reaches the plugin; a mark takes its place in the
run's ``config.yaml``, and in errors. A config that holds the mark is refused: the secret must be
given again. Where a plugin can, it rather reads a secret from the environment, and its config names
the variable (``api_key_env: NAME``): no file holds it then. A plugin may still repeat it in an
error, so that what such a variable holds is hidden as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, Secret, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from verl_core.config.tree import Key, YamlPath

#: What stands in a secret's place.
MARK = "**********"
#: Shorter texts are not looked for in messages: they would be found in any of them.
_SHORTEST = 4


def secret_paths(model: type[BaseModel], arguments: Mapping[str, Any]) -> tuple[YamlPath, ...]:
    """Where secrets stand in `arguments`, which `model` is to read, nested ones included."""
    return tuple(dict.fromkeys(_in_model(model, arguments, ())))


def marked(arguments: Mapping[str, Any], paths: Iterable[YamlPath]) -> dict[str, Any]:
    """A copy of `arguments` with `MARK` at each of `paths`."""
    copy: dict[str, Any] = dict(arguments)
    for path in paths:
        copy = _put(copy, path)
    return copy


def texts_at(arguments: Mapping[str, Any], paths: Iterable[YamlPath]) -> tuple[str, ...]:
    """The texts at each of `paths`, longest first, those that are too short left out."""
    found = {str(_get(arguments, path)) for path in paths}
    return tuple(sorted((text for text in found if len(text) >= _SHORTEST), key=len, reverse=True))


def texts_named(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What the variables hold that `arguments` name: the values of keys that end in ``_env``."""
    found: set[str] = set()
    for key, value in arguments.items():
        if isinstance(value, Mapping):
            found.update(texts_named(value))
        elif isinstance(value, str) and str(key).endswith("_env"):
            found.add(os.environ.get(value, ""))
    return tuple(sorted(text for text in found if len(text) >= _SHORTEST))


def longest_first(secrets: Iterable[str]) -> tuple[str, ...]:
    """In the order in which `without` must take them: one may be a part of another."""
    return tuple(sorted(set(secrets), key=len, reverse=True))


def without(text: str, secrets: Iterable[str]) -> str:
    """`text` with a mark in the place of every secret."""
    for secret in secrets:
        text = text.replace(secret, MARK)
    return text


def _in_model(
    model: type[BaseModel], values: Mapping[str, Any], path: YamlPath
) -> Iterator[YamlPath]:
    for name, info in model.model_fields.items():
        for key in _keys(name, info):
            if values.get(key) is not None:
                yield from _in_value(info.annotation, values[key], (*path, key))


def _keys(name: str, info: FieldInfo) -> set[str]:
    """The keys under which a field may be written."""
    keys = {name, info.alias}
    choices = info.validation_alias
    if isinstance(choices, AliasChoices):
        keys |= {choice for choice in choices.choices if isinstance(choice, str)}
    elif isinstance(choices, str):
        keys.add(choices)
    return {key for key in keys if key is not None}


def _in_value(annotation: Any, value: Any, path: YamlPath) -> Iterator[YamlPath]:
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and issubclass(kind, (SecretStr, SecretBytes, Secret)):
        yield path
    elif isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
        yield from _in_model(kind, value, path)
    for inner in get_args(annotation):
        if kind in (Union, UnionType, Annotated):
            yield from _in_value(inner, value, path)
            continue
        for key, item in _items(value):
            yield from _in_value(inner, item, (*path, key))


def _items(value: Any) -> Iterable[tuple[Key, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def _get(value: Any, path: YamlPath) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(value: Any, path: YamlPath) -> Any:
    if not path:
        return MARK
    if not isinstance(value, (dict, list, tuple)):  # a mark took the place of all of it
        return value
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _put(copy[path[0]], path[1:])
    return copy
