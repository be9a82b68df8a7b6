"""What goes between a mount and its worker processes, and how it is read.

A batch goes over as a pickle (protocol 5) of its fields. What comes back is a pickle of plain
values: dicts, lists, texts, numbers and bytes, read by an unpickler that knows no class, so that
nothing a worker sends can run code here or stand for a class that only the worker knows.

Each frame from a worker is a dict with a ``kind``: ``ready`` (it is set up), ``answer`` (the
checked columns of one batch) or ``error`` (what was raised, with its traceback as text).
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from verl_core.rewards.raised import told
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import (
    ConfigError,
    ContractError,
    PluginError,
    ProviderError,
    ProviderTimeout,
    RewardError,
)
from verl_reward_sdk.result import RewardResult

#: The longest frame that a worker may send, in bytes.
MAX_ANSWER = 256 * 2**20

_PROTOCOL = 5
_MAX_TEXT, _MAX_TRACEBACK = 10_000, 50_000
_PLAIN = (type(None), bool, int, float, str)
_PLACES = ("file", "line", "column", "path", "hint")
_KNOWN: dict[str, type[Exception]] = {
    cls.__name__: cls
    for cls in (
        PluginError,
        ConfigError,
        ContractError,
        ProviderTimeout,
        ProviderError,
        RewardError,
    )
}


class RaisedInWorker(ProviderError):
    """A provider's exception, as its worker told it; its class stays in the worker.

    Args:
        kind: the name of its class.
        text: what it said, on one line.
        traceback: the worker's traceback, as Python prints it.
    """

    def __init__(self, kind: str, text: str, traceback: str) -> None:
        super().__init__(kind, text, traceback)
        self.kind = kind
        self.text = text
        self.traceback = traceback

    def __str__(self) -> str:
        return self.text


class WorkerTraceback(Exception):
    """The `__cause__` of an error that a worker sent: its traceback, as text."""

    def __str__(self) -> str:
        return f"in the worker process\n{self.args[0]}"


# -- batches -----------------------------------------------------------------------------------


def pack_batch(batch: RewardBatch) -> bytes:
    """`batch` as a frame.

    Raises:
        ProviderError: it cannot be pickled; the field or column that is to blame is named.
    """
    try:
        return pickle.dumps(batch, protocol=_PROTOCOL)
    except Exception as error:
        raise ProviderError(
            f"the batch cannot be sent to a worker process: {_culprit(batch)} cannot be pickled"
            f" ({told(error)})"
        ) from error


def _culprit(batch: RewardBatch) -> str:
    fields: dict[str, Any] = {f"the column {name!r}": v for name, v in batch.columns.items()}
    fields |= {name: getattr(batch, name) for name in ("prompts", "trajectories", "group_ids")}
    for name, value in fields.items():
        try:
            pickle.dumps(value, protocol=_PROTOCOL)
        except Exception:  # noqa: BLE001 - whatever stops it, this is what cannot be sent
            return name
    return "one of its fields"


# -- in the worker -------------------------------------------------------------------------------


def pack_ready(labels: Sequence[str] | None = None) -> bytes:
    """The frame that says: set up.

    Args:
        labels: of its provider, where it has any.
    """
    told_labels = None if labels is None else [str(label) for label in labels]
    return pickle.dumps({"kind": "ready", "labels": told_labels}, protocol=_PROTOCOL)


def pack_answer(
    answer: object, *, provider: str, n: int, score_range: tuple[float, float]
) -> bytes:
    """A provider's answer to n rows as a frame of plain columns.

    Raises:
        ContractError: it breaks the contract, cannot be read, or is larger than `MAX_ANSWER`.
    """
    try:
        columns = _columns(answer, provider, n, score_range)
    except ContractError:
        raise
    except Exception as error:
        raise ContractError(
            f"the answer cannot be read ({told(error)})",
            provider=provider,
            value=type(answer).__name__,
            bound="RewardResult or a sequence of float | None",
        ) from error
    frame = pickle.dumps(columns, protocol=_PROTOCOL)
    if len(frame) > MAX_ANSWER:
        raise ContractError(
            "the answer is too large",
            provider=provider,
            value=f"{len(frame) / 2**20:.0f} MiB",
            bound=f"at most {MAX_ANSWER // 2**20} MiB",
        )
    return frame


def _columns(
    answer: object, provider: str, n: int, score_range: tuple[float, float]
) -> dict[str, Any]:
    result = RewardResult.of(answer, provider=provider)
    scores, scored = result.checked(provider=provider, n=n, score_range=score_range)
    tokens = result.token_scores
    return {
        "kind": "answer",
        "scores": scores.tobytes(),
        "present": scored.tobytes(),
        "failures": {int(row): str(reason) for row, reason in result.failures.items()},
        "reasons": {int(row): str(reason) for row, reason in result.reasons.items()},
        "token_scores": None
        if tokens is None
        else [
            _packed_tokens(tokens[row], provider, row) if scored[row] else None for row in range(n)
        ],
        "severity": None
        if result.severity is None
        else [
            word if word is None or isinstance(word, str) else bool(word)
            for word in result.severity
        ],
        "extras": {
            str(name): np.asarray(column, dtype=np.float64).tobytes()
            for name, column in result.extras.items()
        },
    }


def _packed_tokens(value: Any, provider: str, row: int) -> tuple[tuple[int, ...], bytes] | None:
    """A scored row's token scores: their shape, and float64 as bytes. None stays None: it says
    something else than an empty entry. What they must add up to is seen to by the mount."""
    if value is None:
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # ragged, or on another device
        array = np.empty(0, dtype=object)
    if array.dtype.kind in "biuf" and (array.ndim == 1 or array.shape[1:] == (3,)):
        return tuple(array.shape), array.astype(np.float64).tobytes()
    raise ContractError(
        "token scores of neither form",
        provider=provider,
        row=row,
        value=value,
        bound="(T,) numbers along response_ids, or spans (start, end, score)",
    )


def pack_error(error: BaseException) -> bytes:
    """What was raised, as a frame: a type's name, texts and plain values."""
    name = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _KNOWN), None)
    known = name is not None and isinstance(error, _KNOWN[name])
    frame: dict[str, Any] = {
        "kind": "error",
        "type": type(error).__name__,
        "known": name if known else None,
        "text": told(error)[:_MAX_TEXT],
        "traceback": _traceback_of(error),
        "fields": _fields(error),
    }
    return pickle.dumps(frame, protocol=_PROTOCOL)


def _fields(error: BaseException) -> dict[str, Any]:
    if isinstance(error, ConfigError):
        places = {key: _plain(getattr(error, key)) for key in _PLACES}
        return {"message": str(error.message)[:_MAX_TEXT], **places}
    if isinstance(error, ContractError):
        return {
            "message": str(error.message)[:_MAX_TEXT],
            "provider": str(error.provider),
            "row": None if error.row is None else int(error.row),
            "value": _plain(error.value),
            "bound": _plain(error.bound),
        }
    if isinstance(error, ProviderError | RewardError):
        return {"message": str(error)[:_MAX_TEXT]}
    return {}


def _plain(value: Any) -> Any:
    """`value` where it is plain and short, or its text."""
    if type(value) in _PLAIN and not (isinstance(value, str) and len(value) > _MAX_TEXT):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item())
    try:
        return {"shown": repr(value)[:_MAX_TEXT]}
    except Exception as inner:  # noqa: BLE001  (somebody else's, and not even to be shown)
        return {"shown": f"<{type(value).__name__}, which cannot be shown: {told(inner)}>"}


def _traceback_of(error: BaseException) -> str:
    try:
        lines = traceback.format_exception(error)
    except Exception as inner:  # noqa: BLE001  (somebody else's, and not even to be shown)
        return f"(its traceback cannot be shown: {told(inner)})"
    return "".join(lines)[-_MAX_TRACEBACK:]


# -- in the parent -------------------------------------------------------------------------------


class _NoClasses(pickle.Unpickler):
    """Reads plain values, and nothing else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names a class, {module}.{name}")


class _Shown:
    """A value that could not come over; its text did."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def unpack(frame: bytes) -> RewardResult | tuple[str, ...] | None:
    """What a worker sent: its labels (or None) for ``ready``, or the result of a batch.

    Raises:
        ConfigError, ContractError, ProviderError: what the worker says was raised there; its
            `__cause__` holds the traceback as text.
        ValueError: the frame cannot be read; something in the worker wrote into the connection.
    """
    try:
        message = _NoClasses(io.BytesIO(frame)).load()
        kind = message["kind"]
        if kind == "ready":
            labels = message["labels"]
            return None if labels is None else tuple(labels)
        if kind == "answer":
            return _result(message)
        error = _error(message)
    except Exception as broken:
        raise ValueError(f"what its worker sent cannot be read ({told(broken)})") from broken
    raise error from WorkerTraceback(message["traceback"])


def _result(message: Mapping[str, Any]) -> RewardResult:
    tokens: Sequence[tuple[tuple[int, ...], bytes] | None] | None = message["token_scores"]
    columns: Mapping[str, bytes] = message["extras"]
    extras: dict[str, Any] = {
        name: np.frombuffer(column, dtype=np.float64) for name, column in columns.items()
    }
    return RewardResult(
        scores=np.frombuffer(message["scores"], dtype=np.float64),
        present=np.frombuffer(message["present"], dtype=np.bool_),
        failures=message["failures"],
        reasons=message["reasons"],
        token_scores=None if tokens is None else [_tokens(packed) for packed in tokens],
        severity=message["severity"],
        extras=extras,
    )


def _tokens(packed: tuple[tuple[int, ...], bytes] | None) -> npt.NDArray[np.float64] | None:
    if packed is None:
        return None
    shape, values = packed
    return np.frombuffer(values, dtype=np.float64).reshape(shape)


def _error(message: Mapping[str, Any]) -> Exception:
    if message["known"] is None:
        return RaisedInWorker(message["type"], message["text"], message["traceback"])
    cls = _KNOWN[message["known"]]
    fields = {key: _seen(value) for key, value in message["fields"].items()}
    return cls(fields.pop("message"), **fields)


def _seen(value: Any) -> Any:
    return _Shown(value["shown"]) if isinstance(value, dict) else value
