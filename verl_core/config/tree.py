"""The tree of a YAML document: values that remember where they and their keys were written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_reward_sdk.errors import ConfigError

Key = str | int
YamlPath = tuple[Key, ...]
Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Origin:
    """Where something was written: a place in a file, or an override on the command line.

    Args:
        file: the file, or ``override 3``; None where nobody knows.
        line: 1-based; None for an override.
        column: 1-based; None for an override.
        path: the dotted key of an override, as it was typed.
    """

    file: str | None
    line: int | None = None
    column: int | None = None
    path: str | None = None

    def error(
        self, message: str, *, path: str | None = None, hint: str | None = None
    ) -> ConfigError:
        """A `ConfigError` that points here."""
        return ConfigError(
            message, file=self.file, line=self.line, column=self.column, path=path, hint=hint
        )


@dataclass
class Node:
    """One value of the tree.

    Args:
        value: a scalar, a dict of nodes, or a list of nodes.
        origin: where the value is written.
        key_origin: where its key is written, if it has one.
        plain: written without quotes (only such text may turn into a number when interpolated).
        written: what stood there before an environment variable took its place; errors show this.
    """

    value: Scalar | dict[Key, Node] | list[Node]
    origin: Origin
    key_origin: Origin | None = None
    plain: bool = False
    written: str | None = None

    def child(self, key: Key) -> Node | None:
        """The node under `key`, or None."""
        if isinstance(self.value, dict):
            return self.value.get(key)
        if isinstance(self.value, list) and isinstance(key, int) and 0 <= key < len(self.value):
            return self.value[key]
        return None

    def find(self, path: YamlPath) -> tuple[Node, int]:
        """The deepest node on `path`, and how many steps of it were found."""
        node = self
        for depth, key in enumerate(path):
            child = node.child(key)
            if child is None:
                return node, depth
            node = child
        return node, len(path)

    def children(self) -> Iterator[tuple[Key, Node]]:
        """Keys (or indices) and nodes under it; nothing under a scalar."""
        if isinstance(self.value, dict):
            yield from self.value.items()
        elif isinstance(self.value, list):
            yield from enumerate(self.value)

    def unwrap(self) -> Any:
        """Plain Python values: dict, list, str, int, float, bool, None."""
        if isinstance(self.value, dict):
            return {key: node.unwrap() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.unwrap() for node in self.value]
        return self.value


def wrap(value: Any, origin: Origin) -> Node:
    """Plain Python values as a tree whose every node has this one origin."""
    if isinstance(value, dict):
        return Node({key: wrap(item, origin) for key, item in value.items()}, origin, origin)
    if isinstance(value, list | tuple):
        return Node([wrap(item, origin) for item in value], origin, origin)
    return Node(value, origin, origin)
