"""How a mount gets its name."""

from __future__ import annotations

import re

NAME = re.compile(r"^[^\W\d][\w-]*$")
#: Taken by log metrics: ``reward/fused/mean``, ``reward/masked``, ``weights/revision``.
RESERVED = frozenset(
    {"fused", "masked", "skipped", "blocked", "groups_dropped", "revision", "reward", "fusion"}
)


def snake_case(class_name: str) -> str:
    """``HTTPRewardNode`` -> ``http_reward_node``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name)
    return words.lower()


def mount_name(name: object, kind: object, node_class: object) -> str | None:
    """``name:``, else ``type:``, else (``type: custom``) the class in snake case without `Node`.

    None where what was written gives no name.
    """
    if isinstance(name, str):
        return name
    if isinstance(kind, str) and kind != "custom":
        return kind
    if isinstance(node_class, str) and kind == "custom":
        return snake_case(node_class.rpartition(".")[2].removesuffix("Node")) or None
    return None
