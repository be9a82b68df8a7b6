"""What a cached score depends on, as a short key: no two different contents share one.

A value is written as bytes with its type and its length before it, so that the writing can be read
in one way only: 1, 1.0, True and "1" differ, as do a list and a tuple, and a dict and the same one
in another order (a provider may see the order). The key is the BLAKE2b digest of that, 160 bits.

What is not in the key must not matter to a provider whose rows are cached: `sample_ids`,
`group_ids`, `step`, `policy_version`, `training`, and the other rows of the batch.
"""

from __future__ import annotations

import inspect
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.rows import uncopied

#: Changes when the writing below or the meaning of a cached row does: older rows are never hit.
FORMAT = 1

_KEY_BYTES = 20
_DEPTH = 64


class Unkeyable(TypeError):
    """A value that cannot be written so that equal bytes mean equal values."""


# -- rows ------------------------------------------------------------------------------------------


def row_keys(batch: RewardBatch, scope: bytes, *, tokens: bool) -> list[bytes | None]:
    """B keys; None for a row with a value that cannot be keyed: it is not cached.

    Args:
        batch: with no other columns than the provider sees.
        scope: of `cache_scope`.
        tokens: the provider gives token scores, which depend on `response_ids`.
    """
    names = sorted(batch.columns)
    head = blake2b(digest_size=_KEY_BYTES)
    head.update(scope)
    head.update(encode(names))
    fields: list[Sequence[Any]] = [batch.responses, batch.responses_raw, batch.finish_reason]
    fields += [uncopied(batch.columns[name]) for name in names]
    for optional in (
        batch.trajectories,
        batch.response_ids if tokens else None,
        batch.response_mask if tokens else None,
    ):
        fields.append((None,) * len(batch) if optional is None else uncopied(optional))
    prompts = _Prompts()
    keys: list[bytes | None] = []
    for row, prompt in enumerate(uncopied(batch.prompts)):
        try:
            parts = [prompts.encoded(prompt)]
            for column in fields:
                _write(column[row], parts, 0)
        except Unkeyable:
            keys.append(None)
            continue
        digest = head.copy()
        digest.update(b"".join(parts))
        keys.append(digest.digest())
    return keys


class _Prompts:
    """The rows of a group hold the same prompt object: it is written once."""

    def __init__(self) -> None:
        self._last: object = self
        self._bytes = b""

    def encoded(self, prompt: Any) -> bytes:
        if prompt is not self._last:
            self._bytes = encode(prompt)
            self._last = prompt
        return self._bytes


# -- the scope -------------------------------------------------------------------------------------


def cache_scope(*, provider: str, code: str, config: Any, generation: Any, path: str) -> bytes:
    """What all rows of one generation of one provider share, as a digest.

    Args:
        provider: its name.
        code: of `code_version`.
        config: its config as plain values (``model_dump(mode="json")``, `init_kwargs`).
        generation: what the generation stands for, as plain values. Where the cache outlives the
            process, the digests of its assets (`asset_digests`): a number is the next run's too.
        path: the mount's YAML path, for errors.

    Raises:
        ConfigError: config or generation holds a value that cannot be keyed.
    """
    try:
        content = encode([FORMAT, provider, code, config, generation])
    except Unkeyable as error:
        raise ConfigError(
            f"its scores cannot be cached, since {error}",
            path=f"{path}.cache",
            hint="leave cache: out, or give plain values in init_kwargs",
        ) from error
    return blake2b(content, digest_size=_KEY_BYTES).digest()


def code_version(provider: type, dist: str | None = None) -> str:
    """Which code scores: ``dist`` (``verl-reward-rules 0.1.0``) and its module's content.

    The content tells apart the states of a distribution that is edited in place, and of a class in
    a file that no distribution has; it is that of the class's own file only.
    """
    try:
        file = inspect.getsourcefile(provider)
    except (TypeError, OSError):
        file = None
    content = "" if file is None else _digest_of(Path(file).parent, [Path(file)])
    return f"{dist or ''} {provider.__module__}.{provider.__qualname__} {content}"


def asset_digests(assets: Iterable[Path]) -> list[list[str]]:
    """``[path, digest]`` of each file or folder that a provider reads, in their order.

    Raises:
        OSError: one cannot be read.
    """
    return [[str(asset), _asset_digest(asset)] for asset in assets]


def _asset_digest(asset: Path) -> str:
    if not asset.is_dir():
        return _digest_of(asset.parent, [asset])
    walk = os.walk(asset, followlinks=True)
    found = (Path(folder) / name for folder, _, names in walk for name in names)
    return _digest_of(asset, sorted(path for path in found if path.is_file()))


def _digest_of(root: Path, files: Iterable[Path]) -> str:
    """Of the files' contents, and their names under `root`."""
    digest = blake2b(digest_size=_KEY_BYTES)
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(encode([str(path.relative_to(root)), size]))
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


# -- the writing -----------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """`value` as bytes from which it could be read back, type and all.

    Raises:
        Unkeyable: it holds a value of another type than None, bool, int, float, complex, str,
            bytes, list, tuple, dict, set, frozenset and numpy's arrays and scalars (but structured
            ones), or is nested more than 64 deep.
    """
    out: list[bytes] = []
    _write(value, out, 0)
    return b"".join(out)


def _write(value: Any, out: list[bytes], depth: int) -> None:
    writer = _WRITERS.get(type(value))
    if writer is None:
        # A subclass of an array may hold more than its items (a mask).
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            raise Unkeyable(f"there is a {type(value).__name__} in it")
        writer = _array
    elif depth > _DEPTH:
        raise Unkeyable(f"it is nested more than {_DEPTH} deep")
    writer(value, out, depth)


def _size(tag: bytes, n: int) -> bytes:
    return tag + n.to_bytes(8, "big")


def _text(value: str, out: list[bytes], depth: int) -> None:
    raw = value.encode("utf-8", "surrogatepass")
    out += (_size(b"s", len(raw)), raw)


def _int(value: int, out: list[bytes], depth: int) -> None:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    out += (_size(b"i", len(raw)), raw)


def _sequence(tag: bytes) -> Callable[[Any, list[bytes], int], None]:
    def write(value: Sequence[Any], out: list[bytes], depth: int) -> None:
        out.append(_size(tag, len(value)))
        for item in value:
            _write(item, out, depth + 1)

    return write


def _mapping(value: Mapping[Any, Any], out: list[bytes], depth: int) -> None:
    out.append(_size(b"d", len(value)))
    for key, item in value.items():
        _write(key, out, depth + 1)
        _write(item, out, depth + 1)


def _set(tag: bytes) -> Callable[[Any, list[bytes], int], None]:
    def write(value: Iterable[Any], out: list[bytes], depth: int) -> None:
        items = []
        for item in value:
            part: list[bytes] = []
            _write(item, part, depth + 1)
            items.append(b"".join(part))
        out.append(_size(tag, len(items)))
        out += sorted(items)

    return write


def _array(value: Any, out: list[bytes], depth: int) -> None:
    """An array or a scalar of numpy's; which of the two is kept too."""
    dtype = value.dtype
    if dtype.kind == "V":
        raise Unkeyable(f"there is an array of {dtype} in it")
    out.append(b"a" if isinstance(value, np.ndarray) else b"n")
    _text(dtype.str, out, depth)
    _write(tuple(value.shape), out, depth)
    if dtype.hasobject:
        _write(value.ravel().tolist(), out, depth + 1)
    else:
        raw = value.tobytes()  # in C order, whatever the array's own
        out += (_size(b"b", len(raw)), raw)


_WRITERS: dict[type, Callable[[Any, list[bytes], int], None]] = {
    type(None): lambda value, out, depth: out.append(b"N"),
    bool: lambda value, out, depth: out.append(b"T" if value else b"F"),
    int: _int,
    float: lambda value, out, depth: out.append(b"f" + struct.pack(">d", value)),
    complex: lambda value, out, depth: out.append(
        b"c" + struct.pack(">dd", value.real, value.imag)
    ),
    str: _text,
    bytes: lambda value, out, depth: out.extend((_size(b"b", len(value)), value)),
    list: _sequence(b"l"),
    tuple: _sequence(b"t"),
    dict: _mapping,
    set: _set(b"S"),
    frozenset: _set(b"Z"),
}
