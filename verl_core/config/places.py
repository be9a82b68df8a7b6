"""Between a YAML path and its place: the line to point at, and the path as people write it."""

from __future__ import annotations

import re
from typing import TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from verl_core.config.names import mount_name
from verl_core.config.tree import Key, Node, Origin, YamlPath, wrap
from verl_reward_sdk.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

_SECRET = re.compile(r"(^|_)(api_?key|token|secret|password|passwd|authorization)$", re.IGNORECASE)
_whole_file: type[BaseModel] | None = None
_MOUNTS: tuple[YamlPath, ...] = (("reward",), ("eval_reward", "reward"))


def error_at(root: Node, path: YamlPath, message: str, *, hint: str = "") -> ConfigError:
    """An error at `path` of the tree, or at the deepest of its parents that is written.

    Where not even its section is written, the file is named without a line: any line would be an
    unrelated one. A setting that is not written is shown with its default: ``server.port (default
    8000)``.
    """
    node, depth = root.find(path)
    shown = shown_path(root, path)
    made_up = depth == 1 and node.key_origin is None  # by the reader: a written key has a place
    if made_up or depth < len(path):
        origin = Origin(root.origin.file) if made_up else _nearest_origin(root, node, depth, shown)
        return origin.error(message, path=shown + _default_note(path), hint=hint)
    is_scalar = not isinstance(node.value, dict | list)
    origin = node.origin if is_scalar else node.key_origin or node.origin
    if origin.path is not None and origin.path.count(".") >= shown.count("."):
        shown = origin.path
    return origin.error(message, path=shown or None, hint=hint)


def located(root: Node, error: ConfigError, otherwise: str = "") -> ConfigError:
    """`error` with the place of its YAML path (or of `otherwise`), unless it names a file itself.

    Args:
        root: the tree that the path belongs to.
        error: of somebody who knows the path, such as ``server.port``, but no file.
        otherwise: the path of an error that names none.
    """
    place = error_at(root, tree_path(root, error.path or otherwise), "")
    found = error.with_location(
        file=place.file, line=place.line, column=place.column, path=place.path
    )
    if error.file is None:
        found.path = place.path
    return found


def _nearest_origin(root: Node, node: Node, depth: int, shown: str) -> Origin:
    """Where to point for the path `shown`, of which only `node`, `depth` keys deep, is there."""
    origin = node.key_origin or node.origin
    typed = origin.path is not None and not shown.startswith(f"{origin.path}.")
    if depth == 0 or typed:  # `typed`: an override of a setting beside it
        return Origin(root.origin.file)
    return origin


def shows_its_defaults(model: type[Model]) -> type[Model]:
    """Class decorator of the model of a whole file: an error about a setting that is not written
    shows the default that it has there."""
    global _whole_file
    _whole_file = model
    return model


def _default_note(path: YamlPath) -> str:
    """`` (default 8000)``; nothing where the setting has no default of its own."""
    field = None if _whole_file is None else _field(_whole_file, path)
    if field is None or field.is_required():
        return ""
    value = field.get_default()
    if isinstance(value, BaseModel):
        return " (default)"
    return f" (default {shown_value(wrap(value, Origin(None)), path)})"


def _field(model: type[BaseModel], path: YamlPath) -> FieldInfo | None:
    *sections, last = path
    for key in sections:
        field = model.model_fields.get(str(key))
        if field is None or not isinstance(field.annotation, type):
            return None
        if not issubclass(field.annotation, BaseModel):
            return None
        model = field.annotation
    return model.model_fields.get(str(last))


def shown_path(root: Node, path: YamlPath) -> str:
    """``reward.tone.weight``: mounts by name, other list items by index: ``optim.betas[0]``."""
    text = ""
    node: Node | None = root
    for depth, key in enumerate(path):
        is_list = node is not None and isinstance(node.value, list)
        node = None if node is None else node.child(key)
        above = path[:depth]
        if above == ("eval_reward",) and key == "reward":
            continue
        if is_list and above in _MOUNTS:
            key = name_of(node) or key
        if is_list and isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}" if text else str(key)
    return text


def name_of(node: Node | None) -> str | None:
    """The name of the mount that is written in `node`, or None."""
    if node is None or not isinstance(node.value, dict):
        return None
    parts = (node.value.get(key) for key in ("name", "type", "node_class"))
    return mount_name(*(None if part is None else part.value for part in parts))


def tree_path(root: Node, text: str) -> YamlPath:
    """The opposite of `shown_path`: the keys and indices of ``reward.tone.weight``.

    What is not there ends up in the path as it stands.
    """
    path: YamlPath = ()
    for word in re.findall(r"[^.\[\]]+", text):
        if path == ("eval_reward",) and word not in ("reward", "fusion"):
            path = (*path, "reward")
        node, depth = root.find(path)
        key: Key = word
        if depth == len(path) and isinstance(node.value, list):
            names = [name_of(child) for child in node.value] if path in _MOUNTS else []
            if word in names:
                key = names.index(word)
            elif word.isdecimal():
                key = int(word)
        path = (*path, key)
    return path


def shown_value(node: Node, path: YamlPath = ()) -> str:
    """The value as YAML would have it, short. Secrets and the environment's values are not told."""
    if node.written is not None:
        return node.written
    if path and isinstance(path[-1], str) and _SECRET.search(path[-1]):
        return "a value that is not shown"
    value = node.value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-1]}"
