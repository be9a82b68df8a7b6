"""Classes that a config names (`node_class`), imported from local files only and proved.

A class comes from a module beside the config or from an installed package, never over HTTP. It is
built with the config's folder as working directory, one at a time.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from verl_reward_sdk import ConfigError, did_you_mean

T = TypeVar("T")

_BUILDING = threading.Lock()  # the working directory belongs to the whole process


def load_class(dotted: str, base: type[T], folder: Path) -> type[T]:
    """The class ``module.Class``, which must be a subclass of `base`.

    Args:
        dotted: as written in the config.
        base: `RewardNode` or `Node`.
        folder: the config's folder; a module that lies there comes before an installed one.

    Raises:
        ConfigError: no such module or class, or it is not a `base`.
    """
    value = _resolve(dotted, folder)
    if not (inspect.isclass(value) and issubclass(value, base)):
        kind = "a class" if inspect.isclass(value) else f"a {type(value).__name__}"
        raise ConfigError(
            f"{dotted} is {kind}, but not a {base.__name__}",
            hint=f"name a subclass of {base.__module__}.{base.__name__}",
        )
    return value


def check_arguments(cls: type, init_kwargs: dict[str, Any]) -> None:
    """Refuse arguments that the constructor of `cls` does not take; nothing is constructed.

    Raises:
        ConfigError: one is unknown (the nearest is named) or missing.
    """
    signature = inspect.signature(cls)
    try:
        signature.bind(**init_kwargs)
    except TypeError as error:
        known = list(signature.parameters)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        wrong = None if takes_any else next((n for n in init_kwargs if n not in known), None)
        if wrong is not None:
            raise ConfigError(
                f"{cls.__name__} takes no argument {wrong!r}", hint=did_you_mean(wrong, known)
            ) from error
        raise ConfigError(
            f"init_kwargs do not fit {cls.__name__}: {error}",
            hint=f"it takes: {', '.join(known)}",
        ) from error


def build(cls: type[T], init_kwargs: dict[str, Any], safe: Sequence[str], folder: Path) -> T:
    """An instance of `cls`, with `safe` classes allowed to ``torch.load``.

    Raises:
        ConfigError: the constructor raised; a pickle that needs more classes is told which.
    """
    allowed = _allowed_classes(safe, folder)
    check_arguments(cls, init_kwargs)
    with _BUILDING, _working_directory(folder), torch.serialization.safe_globals(allowed):
        try:
            return cls(**init_kwargs)
        except pickle.UnpicklingError as error:
            raise ConfigError(
                f"{cls.__name__} loads a pickled file whose classes are not allowed: "
                f"{str(error).splitlines()[0]}",
                hint="if you trust the file, name its classes in the mount's safe_globals: "
                "[module.Class]; better, save the weights as safetensors",
            ) from error
        except Exception as error:
            raise ConfigError(
                f"{cls.__name__} could not be built: {type(error).__name__}: {error}"
            ) from error


def _resolve(dotted: str, folder: Path) -> Any:
    module_name, _, attribute = dotted.rpartition(".")
    if not module_name:
        raise ConfigError(f"{dotted!r} names no module", hint="write module.Class")
    module = _import(module_name, folder, dotted)
    if not hasattr(module, attribute):
        names = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(
            f"module {module_name!r} has no {attribute!r}", hint=did_you_mean(attribute, names)
        )
    return getattr(module, attribute)


def _import(name: str, folder: Path, dotted: str) -> ModuleType:
    local = folder / f"{name}.py"
    if "." not in name and local.is_file():
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, "__file__", None) == str(local):
            return loaded
        return _import_file(name, local)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # at the end: a file here never shadows an installed module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(f"{dotted}: importing it failed: {error}") from error
        near = [path.stem for path in folder.glob("*.py")]
        raise ConfigError(
            f"no module {name!r} beside the config ({folder}) or among installed packages",
            hint=did_you_mean(name, near),
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{dotted}: importing it failed: {type(error).__name__}: {error}"
        ) from error


def _import_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise ConfigError(f"importing {path} failed: {type(error).__name__}: {error}") from error
    return module


def _allowed_classes(names: Sequence[str], folder: Path) -> list[Any]:
    """The named classes, and the modules' classes that such a module is made of.

    A pickled ``nn.Module`` holds its submodules too: allowed with it are torch's own layers and
    the ``nn.Module`` classes of the packages that the named classes come from.
    """
    if not names:
        return []
    named = [_resolve(name, folder) for name in names]
    roots = {"torch", *(str(value.__module__).split(".")[0] for value in named)}
    parts = [cls for cls in _subclasses(nn.Module) if cls.__module__.split(".")[0] in roots]
    return [*named, *parts]


def _subclasses(cls: type) -> set[type]:
    found: set[type] = set()
    queue: list[type] = [cls]
    while queue:
        subclasses: list[type] = queue.pop().__subclasses__()
        for sub in subclasses:
            if sub not in found:
                found.add(sub)
                queue.append(sub)
    return found


@contextmanager
def _working_directory(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
