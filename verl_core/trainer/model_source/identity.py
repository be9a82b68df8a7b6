"""Which model a folder holds, told by its files' contents and not by where it lies.

Cheap: of weights only sizes and pieces are read, some 2 MiB a file however large it is. Training
moves nearly every weight, so that another model of the same shape shows in them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verl_core.trainer.model_source.files import WEIGHTS_INDEX, weight_files

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
#: What a tokenizer is made of where there is no tokenizer.json.
_VOCABULARIES = ("*.model", "*.tiktoken", "vocab.json", "vocab.txt", "merges.txt")
#: What a file says of who wrote it and where, which makes it no other model.
_INCIDENTAL = ("transformers_version", "_name_or_path", "name_or_path")
_PIECES, _PIECE = 128, 16 << 10

#: The parts of an identity, as people call them.
PARTS = {"tokenizer": "tokenizer", "config": "config.json", "weights": "weights"}


def identity(folder: Path, name: str) -> dict[str, str]:
    """What tells the model in `folder` from others, JSON-ready.

    Args:
        folder: of a model that `resolve_model` found.
        name: what it was asked for by.

    Returns:
        ``path``: `name`; and a digest of each of `PARTS`.

    Raises:
        OSError: a file cannot be read.
    """
    vocabulary: list[Path] = []
    if not (folder / "tokenizer.json").is_file():
        vocabulary = [path for pattern in _VOCABULARIES for path in sorted(folder.glob(pattern))]
    tokenizer = [folder / file for file in _TOKENIZER if (folder / file).is_file()]
    weights = [folder / WEIGHTS_INDEX, *weight_files(folder)]
    return {
        "path": name,
        "tokenizer": _whole([*tokenizer, *vocabulary]),
        "config": _whole([folder / "config.json"]),
        "weights": _in_pieces(path for path in weights if path.is_file()),
    }


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The parts in which two identities differ, as people call them. A part that one of them does
    not have, as it was made by another version, is not compared."""
    return [
        said
        for part, said in PARTS.items()
        if part in one and part in other and one[part] != other[part]
    ]


def _whole(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        _add(found, path.name, _essence(path))
    return found.hexdigest()


def _essence(path: Path) -> bytes:
    """The content of a file, of JSON without its layout and what is incidental."""
    data = path.read_bytes()
    if path.suffix != ".json" or path.name == "tokenizer.json":
        return data
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if key not in _INCIDENTAL}
    return json.dumps(content, sort_keys=True).encode()


def _in_pieces(files: Iterable[Path]) -> str:
    """Names, sizes, and pieces from the first byte to the last."""
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            _add(found, path.name, size.to_bytes(8, "little"))
            for number in range(_PIECES):
                file.seek(max(size - _PIECE, 0) * number // (_PIECES - 1))
                found.update(file.read(_PIECE))
    return found.hexdigest()


def _add(found: Any, name: str, content: bytes) -> None:
    for part in (name.encode(), content):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
