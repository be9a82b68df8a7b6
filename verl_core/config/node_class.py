"""Whether a `node_class` can be there, told without importing anything.

Importing it would import torch. A module beside the config is parsed; of an installed package only
its presence is looked up, and the rest (is it a `RewardNode`?) is told when the trainer imports it.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from verl_reward_sdk.errors import ConfigError, did_you_mean


def node_class_problem(name: str, folder: Path) -> ConfigError | None:
    """What keeps ``module.Class`` from being imported, or None.

    Args:
        name: as written in the config.
        folder: the config's folder; its modules come before installed ones.
    """
    module, _, attribute = name.rpartition(".")
    inside = folder.joinpath(*module.split("."))
    for path in (inside.with_suffix(".py"), inside / "__init__.py"):
        if path.is_file():
            return _problem_in(path, attribute)
    if _installed(module.partition(".")[0]):
        return None
    near = sorted(path.stem for path in folder.glob("*.py"))
    return ConfigError(
        f"no module {module!r} beside the config ({folder}) or among installed packages",
        hint=did_you_mean(module, near),
    )


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a broken package, or __main__
        return False


def _problem_in(path: Path, attribute: str) -> ConfigError | None:
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return ConfigError(f"not Python: {error}", file=path, line=line)
    except OSError as error:
        return ConfigError(f"cannot be read: {error.strerror or error}", file=path)
    names = _names(tree)
    if attribute in names or "*" in names:
        return None
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return ConfigError(f"{path.name} has no {attribute!r}", hint=did_you_mean(attribute, classes))


def _names(tree: ast.Module) -> set[str]:
    """Every name that the module may bind anywhere, imports included."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
