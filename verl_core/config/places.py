"""Between a YAML path and its place: the line to point at, and the path as people write it."""

from __future__ import annotations

import re

from verl_core.config.names import mount_name
from verl_core.config.tree import Key, Node, YamlPath
from verl_reward_sdk.errors import ConfigError

_SECRET = re.compile(r"(^|_)(api_?key|token|secret|password|passwd|authorization)$", re.IGNORECASE)
_MOUNTS: tuple[YamlPath, ...] = (("reward",), ("eval_reward", "reward"))


def error_at(root: Node, path: YamlPath, message: str, *, hint: str = "") -> ConfigError:
    """An error at `path` of the tree, or at the deepest of its parents that is there."""
    node, depth = root.find(path)
    is_scalar = depth == len(path) and not isinstance(node.value, dict | list)
    origin = node.origin if is_scalar else node.key_origin or node.origin
    shown = shown_path(root, path)
    if origin.path is not None and origin.path.count(".") >= shown.count("."):
        shown = origin.path
    return origin.error(message, path=shown or None, hint=hint)


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
