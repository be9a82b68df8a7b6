"""Whether a folder holds a model that can be loaded, told without loading it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

WEIGHTS_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
#: A header lists names, shapes and offsets: of the largest models it is a few MB.
_HEADER_LIMIT = 100 << 20


def folder_problem(folder: Path) -> str | None:
    """What keeps `folder` from being a causal language model with its tokenizer, or None.

    Looks for a config that names its architecture, weights that are complete (every shard there,
    none cut short), and a tokenizer.
    """
    config = _read_json(folder / "config.json")
    if isinstance(config, str):
        return config
    if not config.get("model_type"):
        return "its config.json names no model_type"
    problem = _weights_problem(folder)
    if problem is not None:
        return problem
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        return "it has no tokenizer (tokenizer.json)"
    return None


def weight_files(folder: Path) -> list[Path]:
    """The files that the weights of the model in `folder` are read from, as transformers chooses
    them: shards, one safetensors file, or PyTorch's."""
    index = folder / WEIGHTS_INDEX
    if index.is_file():
        content = _read_json(index)
        shards = {} if isinstance(content, str) else content.get("weight_map", {})
        return [folder / str(name) for name in sorted(set(shards.values()))]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    return sorted(folder.glob("pytorch_model*.bin"))


def _weights_problem(folder: Path) -> str | None:
    index = folder / WEIGHTS_INDEX
    if index.is_file():
        content = _read_json(index)
        if isinstance(content, str):
            return content
        shards = sorted(set(content.get("weight_map", {}).values()))
        for shard in shards:
            problem = _safetensors_problem(folder / str(shard))
            if problem is not None:
                return problem
        return None if shards else f"its {index.name} names no weights"
    if (folder / "model.safetensors").is_file():
        return _safetensors_problem(folder / "model.safetensors")
    if (folder / "pytorch_model.bin").is_file() or (
        folder / "pytorch_model.bin.index.json"
    ).is_file():
        return None
    return "it has no weights (model.safetensors)"


def _safetensors_problem(path: Path) -> str | None:
    """A shard that is missing, unreadable, or shorter than its own header says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size - 8, _HEADER_LIMIT):
                return f"{path.name} is not a safetensors file"
            header = json.loads(file.read(length))
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    except ValueError:
        return f"{path.name} is not a safetensors file"
    if not isinstance(header, dict):
        return f"{path.name} is not a safetensors file"
    needed = 8 + length + max(_ends(header), default=0)
    if size < needed:
        return f"{path.name} is cut short: {size} bytes of {needed}"
    return None


def _ends(header: Mapping[str, Any]) -> Iterator[int]:
    for name, tensor in header.items():
        if name != "__metadata__" and isinstance(tensor, dict):
            yield int(tensor.get("data_offsets", (0, 0))[1])


def _read_json(path: Path) -> dict[str, Any] | str:
    """The object in a JSON file, or what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it has no {path.name}"
    except OSError as error:
        return f"its {path.name} cannot be read: {error.strerror or error}"
    except ValueError:
        return f"its {path.name} is not JSON"
    return content if isinstance(content, dict) else f"its {path.name} is not a JSON object"


def hub_cache(env: Mapping[str, str]) -> Path:
    """Where Hugging Face's libraries keep what they download, by the same variables."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name]).expanduser()
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "hub"
    base = env.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(base).expanduser() / "huggingface" / "hub"


def hub_repository(cache: Path, model_id: str) -> Path:
    """Where a hub cache keeps a model's revisions."""
    return cache / ("models--" + model_id.replace("/", "--"))


def hub_snapshot(cache: Path, model_id: str) -> Path | None:
    """The newest complete snapshot of a hub model in `cache`, or None."""
    repository = hub_repository(cache, model_id)
    try:
        revision = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        names = [revision, *sorted(os.listdir(repository / "snapshots"))]
    except (OSError, ValueError):
        return None
    for name in names:
        folder = repository / "snapshots" / name
        if name and folder.is_dir() and folder_problem(folder) is None:
            return folder
    return None


def hub_ids(cache: Path) -> list[str]:
    """Ids of the models in a hub cache."""
    try:
        names = sorted(os.listdir(cache))
    except OSError:
        return []
    prefix = "models--"
    return [n[len(prefix) :].replace("--", "/") for n in names if n.startswith(prefix)]
