"""The short forms of a run's YAML, rewritten in the tree to the full one."""

from __future__ import annotations

from dataclasses import replace

from verl_core.config.tree import Node


def to_full_form(root: Node) -> None:
    """In place: ``reward:`` becomes a list of mounts, ``eval_reward:`` a pair of reward and fusion.

    ``eval_reward:`` has the forms of ``reward:`` (a mount, a list of mounts), or both keys' forms
    under one roof: ``{reward: …, fusion: …}``. Applying it twice changes nothing more.
    """
    if not isinstance(root.value, dict):
        return
    _listed(root, "reward")
    section = root.value.get("eval_reward")
    if section is None or section.value is None:
        return
    is_pair = isinstance(section.value, dict) and section.value.keys() & {"reward", "fusion"}
    if not is_pair and isinstance(section.value, dict | list):
        inner = replace(section)
        section = replace(section, value={"reward": inner})
        root.value["eval_reward"] = section
    _listed(section, "reward")


def _listed(parent: Node, key: str) -> None:
    if not isinstance(parent.value, dict):
        return
    node = parent.value.get(key)
    if node is not None and isinstance(node.value, dict):
        parent.value[key] = replace(node, value=[replace(node, key_origin=None)])
