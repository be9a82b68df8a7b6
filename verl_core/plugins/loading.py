"""Importing one plugin's module, behind a fence.

The module's source is read before it runs: it must declare the plugin API it was written for as a
literal, ``VERL_REWARD_API = 1``, so that a plugin of another API is refused by name rather than
by whatever error its code happens to meet. What it raises while it is imported or registered,
``SystemExit`` included, becomes a `LoadFailure`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pluggy

from verl_core.plugins.fence import LoadFailure, guarded
from verl_core.plugins.records import normalise
from verl_reward_sdk import hookspecs
from verl_reward_sdk.errors import did_you_mean
from verl_reward_sdk.version import PLUGIN_API_VERSION

API = "VERL_REWARD_API"


@dataclass(frozen=True)
class Loaded:
    """A module that may serve as a plugin.

    Args:
        module: the imported module.
        api: the plugin API that it declares.
        classes: normalised name -> provider class.
    """

    module: ModuleType
    api: int
    classes: Mapping[str, type[Any]]


def new_manager() -> pluggy.PluginManager:
    """A plugin manager that knows the project's hooks and holds no plugin."""
    manager = pluggy.PluginManager("verl_reward")
    manager.add_hookspecs(hookspecs)
    return manager


def load_plugin(origin: str) -> Loaded:
    """Import the module `origin` and see what it offers. Raises `LoadFailure`.

    It is registered with a manager of its own: pluggy leaves a refused plugin half registered, and
    a refused plugin must not observe.
    """
    module, api = import_plugin(origin)
    trial = new_manager()
    guarded(partial(trial.register, module))
    for caller in trial.get_hookcallers(module) or ():
        if not caller.has_spec():
            hint = did_you_mean(caller.name, hook_names())
            raise LoadFailure(f"implements {caller.name!r}, which is no hook: {hint}")
    return Loaded(module, api, provider_classes(trial, module))


def import_plugin(origin: str) -> tuple[ModuleType, int]:
    """Import the module `origin`; gives it and the plugin API it declares. Raises `LoadFailure`."""
    spec = guarded(lambda: importlib.util.find_spec(origin))
    if spec is None:
        raise LoadFailure(f"there is no module {origin!r}")
    source = guarded(lambda: _source(spec))
    if source is None:
        raise LoadFailure(f"{origin} comes without its source, so that {API} cannot be read")
    api = guarded(lambda: _declared_api(source, spec.origin or origin))
    if api != PLUGIN_API_VERSION:
        raise LoadFailure(
            f"speaks plugin API {api}, and this version speaks {PLUGIN_API_VERSION}",
            "incompatible",
            api,
        )
    module = guarded(lambda: importlib.import_module(origin), spec)
    if getattr(module, API, None) != api:
        raise LoadFailure(f"{API} is {getattr(module, API, None)!r} once imported, not {api}")
    return module, api


def call_hook(manager: pluggy.PluginManager, module: ModuleType, hook: str) -> list[Any]:
    """What `module` alone answers to a hook without arguments: one value for each implementation.

    Raises `LoadFailure` where the implementation raises. Iterables are consumed here, so that an
    error in a generator is met here too.
    """
    return [
        guarded(partial(_consumed, implementation.function))
        for implementation in getattr(manager.hook, hook).get_hookimpls()
        if implementation.plugin is module
    ]


def provider_classes(manager: pluggy.PluginManager, module: ModuleType) -> dict[str, type[Any]]:
    """Normalised name -> provider class, for all that `module` yields. Raises `LoadFailure`."""
    from verl_reward_sdk.provider import RewardProvider

    found: dict[str, type[Any]] = {}
    for answer in call_hook(manager, module, "verl_reward_providers"):
        if answer is None:
            continue
        if not isinstance(answer, list):
            raise LoadFailure(f"verl_reward_providers must yield classes, not {answer!r}")
        for cls in answer:
            if not (inspect.isclass(cls) and issubclass(cls, RewardProvider)):
                raise LoadFailure(f"verl_reward_providers yields {cls!r}, no RewardProvider class")
            if not isinstance(cls.name, str) or not cls.name.strip():
                raise LoadFailure(f"its class {cls.__name__} has no name")
            name = normalise(cls.name)
            if found.setdefault(name, cls) is not cls:
                raise LoadFailure(
                    f"its classes {found[name].__name__} and {cls.__name__} are both named {name!r}"
                )
    return found


def not_provided(name: str, module: ModuleType, found: Iterable[str]) -> str:
    """Why the entry point `name` of `module` has no class behind it."""
    function = getattr(module, "verl_reward_providers", None)
    if function is None:
        return f"{module.__name__} has no hook verl_reward_providers"
    if not hasattr(function, "verl_reward_impl"):
        return f"verl_reward_providers in {module.__name__} is not marked with @hookimpl"
    names = ", ".join(sorted(found)) or "nothing"
    return f"{module.__name__} provides {names}, and no {name!r}"


def hook_names() -> list[str]:
    """The names of all hooks that the SDK specifies."""
    return [name for name in vars(hookspecs) if name.startswith("verl_reward_")]


def _consumed(hook: Callable[[], Any]) -> Any:
    answer = hook()
    if answer is None or isinstance(answer, (Mapping, str)) or not isinstance(answer, Iterable):
        return answer
    return list(answer)


def _source(spec: ModuleSpec) -> str | None:
    get_source = getattr(spec.loader, "get_source", None)
    if get_source is None:
        return None
    source = get_source(spec.name)
    return source if isinstance(source, str) else None


def _declared_api(source: str, file: str) -> int:
    values = []
    for statement in ast.parse(source, file).body:
        if isinstance(statement, ast.Assign):
            targets: list[ast.expr] = statement.targets
        elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
            targets = [statement.target]
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == API for target in targets):
            values.append(statement)
    if not values:
        raise LoadFailure(
            f"declares no plugin API: its module must hold the line {API} = {PLUGIN_API_VERSION}"
        )
    statement = values[-1]
    value = statement.value
    if (
        len(values) > 1
        or isinstance(statement, ast.AugAssign)
        or not isinstance(value, ast.Constant)
        or type(value.value) is not int
    ):
        raise LoadFailure(
            f"{API} must be one literal number, such as {API} = {PLUGIN_API_VERSION}"
            f" ({file}:{statement.lineno})"
        )
    return value.value
