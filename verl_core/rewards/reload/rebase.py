"""A provider's config with its assets' private copies in their place, and messages without them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel

from verl_core.rewards.reload.copies import Taken
from verl_reward_sdk.errors import ConfigError, ContractError, VerlRewardError


def rebased(config: Any, taken: Taken) -> Any:
    """`config` with each path that is an asset, or lies in one, as the path of its copy.

    Paths are found in fields of models and dataclasses, in mappings, lists, tuples and sets; a text
    is one where it is an asset's whole path. What holds none stays the object that it is.
    """
    return _map(config, lambda value: _moved(value, taken))


def _moved(value: Any, taken: Taken) -> Any:
    if isinstance(value, PurePath):
        copy = taken.private(absolute(value))
        return value if copy is None else type(value)(copy)
    if isinstance(value, str) and os.sep in value and absolute(value) in taken.digests:
        return str(taken.private(absolute(value)) or value)
    return value


def absolute(path: str | PurePath) -> str:
    """Absolute and without ``..``; links stay."""
    return os.path.abspath(path)


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, BaseModel):
        names = [*type(value).model_fields, *(value.__pydantic_extra__ or {})]
        fields = {name: getattr(value, name) for name in names}
        changed = _changes(fields, change)
        return value.model_copy(update=changed) if changed else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        changed = _changes({name: getattr(value, name) for name in names}, change)
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, Mapping):
        changed = _changes(value, change)
        return {**value, **changed} if changed else value
    if isinstance(value, list | tuple | set | frozenset) and type(value) in _PLAIN:
        items = [_map(item, change) for item in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else type(value)(items)
    return change(value)


_PLAIN = (list, tuple, set, frozenset)


def _changes(fields: Mapping[Any, Any], change: Callable[[Any], Any]) -> dict[Any, Any]:
    mapped = {name: _map(value, change) for name, value in fields.items()}
    return {name: value for name, value in mapped.items() if value is not fields[name]}


def original(text: str, folder: Path | None) -> str:
    """`text` with the originals' paths in the place of those below `folder`."""
    return text if folder is None else text.replace(str(folder), "")


def original_error(error: BaseException, folder: Path | None) -> BaseException:
    """`error` with the originals' paths. Errors of the SDK are changed where they are."""
    if folder is None or not isinstance(error, VerlRewardError):
        return error
    if isinstance(error, ConfigError | ContractError):
        error.message = original(error.message, folder)
    if isinstance(error, ConfigError):
        error.file = None if error.file is None else original(error.file, folder)
        error.hint = None if error.hint is None else original(error.hint, folder)
    if isinstance(error, ContractError) and isinstance(error.value, str):
        error.value = original(error.value, folder)
    error.args = tuple(original(a, folder) if isinstance(a, str) else a for a in error.args)
    return error
