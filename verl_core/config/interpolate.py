"""``${oc.env:NAME}`` and ``${oc.env:NAME,default}``, the only interpolation."""

from __future__ import annotations

import re
from collections.abc import Mapping

from verl_core.config.document import plain_scalar
from verl_core.config.places import error_at
from verl_core.config.tree import Node, YamlPath
from verl_reward_sdk.errors import ConfigError

_REFERENCE = re.compile(r"\$\{([^{}]*)\}?")
_ENVIRONMENT = re.compile(r"^oc\.env:\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:,(.*))?$", re.DOTALL)


def interpolate(root: Node, environment: Mapping[str, str]) -> list[ConfigError]:
    """Put the environment's values into the tree, in place; what could not be is returned.

    A plain scalar that is one reference and nothing else becomes what its text is in YAML, so that
    ``port: ${oc.env:PORT,8000}`` is a number; in quotes, or amid other text, it stays text. The
    arguments of plugins and nodes (`init_kwargs`) are never touched.
    """
    problems: list[ConfigError] = []
    stack: list[tuple[YamlPath, Node]] = [((), root)]
    while stack:
        path, node = stack.pop()
        if path and path[-1] == "init_kwargs":
            continue
        stack.extend(((*path, key), child) for key, child in node.children())
        if isinstance(node.value, str) and "${" in node.value:
            try:
                _replace(root, path, node, node.value, environment)
            except ConfigError as problem:
                problems.append(problem)
    return problems


def _replace(
    root: Node, path: YamlPath, node: Node, text: str, environment: Mapping[str, str]
) -> None:
    parts: list[str] = []
    end = 0
    for match in _REFERENCE.finditer(text):
        known = _ENVIRONMENT.match(match[1]) if match[0].endswith("}") else None
        if known is None:
            hint = "only ${oc.env:NAME} and ${oc.env:NAME,default} are known here"
            raise error_at(root, path, f"cannot interpolate {match[0]!r}", hint=hint)
        name, default = known[1], known[2]
        value = environment.get(name, None if default is None else default.strip())
        if value is None:
            hint = f"set it, or write ${{oc.env:{name},default}}"
            raise error_at(root, path, f"the environment has no variable {name!r}", hint=hint)
        parts += [text[end : match.start()], value]
        end = match.end()
    whole = "".join([*parts, text[end:]])
    alone = node.plain and len(parts) == 2 and not parts[0] and end == len(text)
    node.written = text
    node.value = plain_scalar(whole, node.origin) if alone else whole
