"""``key=value`` after the YAML: ``trainer.steps=3``, ``reward.tone.weight=2``.

- Mounts are addressed by name, items of other lists by index: ``optim.betas.0=0.8``.
- Values are YAML: ``2`` is a number, ``[a.B, c.D]`` a list, ``{linear: {…}}`` a mapping.
- Under a mount, a key of the mount comes first. Any other key must be one that its `init_kwargs`
  hold already: ``reward.safety_reward.device=cpu`` sets ``init_kwargs.device``. A further argument
  is written whole, ``reward.safety_reward.init_kwargs.batch_size=8``, so that a slip in the name of
  a key never becomes an argument.
- ``eval_reward.tone.weight`` addresses the evaluation's mounts, in whichever form they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verl_core.config.document import MAX_DEPTH, parse_yaml
from verl_core.config.forms import to_full_form
from verl_core.config.mount import MountConfig
from verl_core.config.names import composed
from verl_core.config.places import name_of, shown_value
from verl_core.config.problems import known_keys
from verl_core.config.tree import Node, Origin
from verl_reward_sdk.errors import ConfigError, did_you_mean

#: Characters of an override that cannot be read which its error shows.
_LONGEST = 200


@dataclass(frozen=True)
class Override:
    """One ``key=value``: its keys, its value, and its number on the command line, from 1."""

    keys: tuple[str, ...]
    value: Node
    origin: Origin


def parse_override(text: str, number: int) -> Override:
    """Read one override.

    Raises:
        ConfigError: it is no ``key=value``, its value is no YAML, or both together are nested
            deeper than `MAX_DEPTH` levels, as no file may be.
    """
    label = Origin(f"override {number}")
    path, equals, value = text.partition("=")
    path = path.strip()
    keys = tuple(path.split("."))
    shown = repr(text) if len(text) <= _LONGEST else f"{text[:_LONGEST]!r}…"
    if not equals or not all(keys):
        raise label.error(f"cannot read {shown}", hint="write key=value, as in trainer.steps=3")
    deep = f"{shown} is nested deeper than {MAX_DEPTH} levels"
    if len(keys) > MAX_DEPTH:
        raise label.error(deep)
    origin = replace(label, path=path)
    try:
        node = _value(value, origin)
    except ConfigError as error:
        hint = error.hint or "put quotes around the value: 'key=\"…\"'"
        raise ConfigError(error.message, file=origin.file, path=path, hint=hint) from None
    if len(keys) + _levels(node) > MAX_DEPTH:
        raise label.error(deep)
    return Override(keys, node, origin)


def _levels(node: Node) -> int:
    """How many collections lie inside one another: at most `MAX_DEPTH`, as it was read."""
    if not isinstance(node.value, dict | list):
        return 0
    return 1 + max((_levels(child) for _, child in node.children()), default=0)


def _value(text: str, origin: Origin) -> Node:
    if not text.strip():
        return Node(None, origin, origin)
    return replace(parse_yaml(text, "", override=origin), key_origin=origin)


def apply_overrides(root: Node, texts: Sequence[str]) -> list[ConfigError]:
    """Write overrides into the tree, in place and in order; what could not be is returned."""
    problems: list[ConfigError] = []
    to_full_form(root)
    for number, text in enumerate(texts, start=1):
        try:
            _apply(root, parse_override(text, number))
        except ConfigError as problem:
            problems.append(problem)
        to_full_form(root)
    return problems


def _apply(root: Node, override: Override) -> None:
    section, *rest = override.keys
    if section == "eval_reward" and rest and rest[0] == "reward":
        rest = rest[1:]  # eval_reward.reward.tone is eval_reward.tone
    elif section == "eval_reward" and rest and rest[0] == "fusion":
        _set(root, override.keys, override)
        return
    if section not in ("reward", "eval_reward") or not rest:
        _set(root, override.keys, override)
        return
    mount = _mount(root, section, rest[0], override.origin)
    keys = rest[1:]
    if not keys:
        hint = f"name one of its keys: {override.origin.path}.weight=2"
        raise _error(override.origin, "this is a whole mount", hint)
    own = known_keys(MountConfig, ())
    if keys[0] in own:
        _set(mount, keys, override)
        return
    arguments = mount.child("init_kwargs")
    if arguments is not None and arguments.child(keys[0]) is not None:
        _set(arguments, keys, override)
        return
    known = [*own, *(str(key) for key, _ in (arguments.children() if arguments else ()))]
    hint = did_you_mean(keys[0], known)
    argument = f"{section}.{rest[0]}.init_kwargs.{'.'.join(keys)}="
    hint = f"{hint} An argument of its own is written {argument}…" if hint else f"or {argument}…"
    raise _error(override.origin, f"a mount has no key {keys[0]!r}", hint)


def _mount(root: Node, section: str, name: str, origin: Origin) -> Node:
    path = ("reward",) if section == "reward" else ("eval_reward", "reward")
    node, depth = root.find(path)
    if depth < len(path) or not isinstance(node.value, list):
        raise _error(origin, f"the file has no {section}:")
    names = [name_of(mount) for mount in node.value]
    name = composed(name)
    if name not in names:
        known = [known for known in names if known is not None]
        raise _error(origin, f"no mount is called {name!r}", did_you_mean(name, known))
    return node.value[names.index(name)]


def _set(node: Node, keys: Sequence[str], override: Override) -> None:
    """Write the value at `keys` below `node`; missing mappings on the way are made."""
    *parents, last = keys
    for key in parents:
        child = _child(node, key, override.origin)
        if child is None:
            child = Node({}, override.origin, override.origin)
            _put(node, key, child)
        if child.value is None:
            child.value = {}
        node = child
    _child(node, last, override.origin)
    _put(node, last, override.value)


def _child(node: Node, key: str, origin: Origin) -> Node | None:
    if isinstance(node.value, dict):
        return node.value.get(key)
    if not isinstance(node.value, list):
        raise _error(origin, f"there is {shown_value(node)}, it has no key {key!r}")
    if not key.isdecimal() or int(key) >= len(node.value):
        raise _error(origin, f"there is {shown_value(node)}, it has no item {key!r}")
    return node.value[int(key)]


def _put(node: Node, key: str, value: Node) -> None:
    if isinstance(node.value, dict):
        node.value[key] = value
    elif isinstance(node.value, list):
        node.value[int(key)] = value


def _error(origin: Origin, message: str, hint: str = "") -> ConfigError:
    return origin.error(message, path=origin.path, hint=hint)
