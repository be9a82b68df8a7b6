"""What the whole process shares, kept as it was while a provider is made, set up, and asked.

A plugin that changes the working folder, torch's default dtype or device, numpy's error handling or
the locale changes the run around it: models of another precision, files that are not found, steps
that raise. It is put back, with a warning that names who did it. This is not a fence: while the
call still runs, the run sees what it changed, and what threads of its own do later is not watched.

Some of these belong to the process, the others to a thread. What is made, set up or asked in the
caller's own thread (`kept`) is held against all of them. A call elsewhere (`Watch`) is held
against the process's: it may have its own threads as it likes. Such calls overlap, and one that
loads a model changes the dtype for a moment, as transformers does; so they are compared with what
was before the first of them, once the last of them has ended.
"""

from __future__ import annotations

import contextlib
import functools
import locale
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Knob:
    """One thing that a process, or a thread, has once.

    Args:
        what: its name, for people.
        read: its value now, a plain one; None where it cannot be told.
        write: put a value back.
        at_first: what it is where torch is just loaded; None where it depends on the machine.
        shared: it is the whole process's, not the thread's.
    """

    what: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    at_first: Any = None
    shared: bool = True


@dataclass(eq=False)
class Culprit:
    """Who may be to blame.

    Args:
        who: its name, for people.
        told: what it was told of before, and is not told of again.
    """

    who: str
    told: set[str] = field(default_factory=set)


Changes: TypeAlias = Mapping[str, tuple[Any, Any]]
"""What is another than before: as it was, and as it is."""


@contextlib.contextmanager
def kept(who: str | Culprit, *, of_thread: bool = False) -> Iterator[None]:
    """Put back, and tell in the log as a fault of `who`, what the body changes of the process and
    of this thread (with `of_thread`: of this thread alone).

    torch is looked at where it is loaded, and never loaded for it: where the body is the first to
    load it, it must be left as it comes.
    """
    culprit = Culprit(who) if isinstance(who, str) else who
    shared = False if of_thread else None
    before = _values(shared)
    try:
        yield
    finally:
        changes = _changes(before, _values(shared))
        if changes:
            for what, values in changes.items():
                _tell([culprit], what, values)
            _put_back(changes)


class Watch:
    """The calls that are under way, of all mounts together, and how the process was before them.

    `kept` for calls that run elsewhere and overlap: see the module's docstring.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: list[_Watched] = []
        self._before: dict[str, Any] = {}
        #: What was seen changed, and who was under way then.
        self._suspects: dict[str, list[Culprit]] = {}

    def begin(self, culprit: Culprit) -> Callable[[], None]:
        """A call begins. What this gives is called when it has ended, however; once counts."""
        call = _Watched(culprit)
        with self._lock:
            if self._under_way:
                self._look()
            else:
                self._before = _values(shared=True)
            self._under_way.append(call)
        return functools.partial(self._end, call)

    def _end(self, call: _Watched) -> None:
        with self._lock:
            if call not in self._under_way:
                return
            changes = self._look()
            self._under_way.remove(call)
            if self._under_way:
                return
            if changes:
                for what, values in changes.items():
                    _tell(self._suspects[what], what, values)
                _put_back(changes)
            self._suspects = {}

    def _look(self) -> Changes:
        """What is changed now; whoever is under way when it is first seen may have done it."""
        changes = _changes(self._before, _values(shared=True))
        if not changes:
            self._suspects = {}
            return changes
        seen = list(dict.fromkeys(call.culprit for call in self._under_way))
        self._suspects = {what: self._suspects.get(what, seen) for what in changes}
        return changes


@dataclass(eq=False)
class _Watched:
    """One call under way."""

    culprit: Culprit


#: Every mount's calls: what they may change, they share.
watch = Watch()


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    if before == after:
        return {}
    firsts = {knob.what: knob.at_first for knob in _knobs()}
    pairs = {what: (before.get(what, firsts[what]), value) for what, value in after.items()}
    return {what: pair for what, pair in pairs.items() if None is not pair[0] != pair[1]}


def _tell(culprits: Sequence[Culprit], what: str, values: tuple[Any, Any]) -> None:
    if all(what in culprit.told for culprit in culprits):
        return
    for culprit in culprits:
        culprit.told.add(what)
    logger.warning(
        "%s changed %s of the whole process from %s to %s: put back",
        " or ".join(sorted(culprit.who for culprit in culprits)),
        what,
        *values,
    )


def _put_back(changes: Changes) -> None:
    knobs = {knob.what: knob for knob in _knobs()}
    for what, (was, _) in changes.items():
        try:
            knobs[what].write(was)
        except Exception as error:  # noqa: BLE001  (such as a folder that is gone)
            logger.warning("%s could not be put back: %s", what, error)


def _values(shared: bool | None = None) -> dict[str, Any]:
    """What they all are now; or the whole process's only, or this thread's only."""
    return {what: read() for what, read in _readers(_knobs(), shared)}


@functools.lru_cache(maxsize=16)
def _readers(
    knobs: tuple[_Knob, ...], shared: bool | None
) -> Sequence[tuple[str, Callable[[], Any]]]:
    return [(knob.what, knob.read) for knob in knobs if shared is None or knob.shared is shared]


def _knobs() -> tuple[_Knob, ...]:
    torch = sys.modules.get("torch")
    loading = getattr(getattr(torch, "__spec__", None), "_initializing", False)
    if torch is None or loading or not hasattr(torch, "get_default_device"):
        return _KNOBS
    return _with_torch(torch)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


_KNOBS = (
    _Knob("the working folder", _folder, os.chdir),
    _Knob("numpy's error handling", np.geterr, lambda value: np.seterr(**value), shared=False),
    _Knob(
        "the locale",
        lambda: locale.setlocale(locale.LC_ALL),
        lambda value: locale.setlocale(locale.LC_ALL, value),
    ),
)


@functools.cache
def _with_torch(torch: Any) -> tuple[_Knob, ...]:
    return (*_KNOBS, *_knobs_of(torch))


def _knobs_of(torch: Any) -> list[_Knob]:
    """torch's. Not its random numbers: whoever needs some of their own draws them from a seed."""
    return [
        _Knob(
            "torch's default dtype",
            lambda: str(torch.get_default_dtype()),
            lambda value: torch.set_default_dtype(getattr(torch, value.removeprefix("torch."))),
            "torch.float32",
        ),
        _Knob(
            "torch's choice of deterministic algorithms",
            torch.get_deterministic_debug_mode,
            torch.set_deterministic_debug_mode,
            0,
        ),
        _Knob(
            "torch's precision of float32 products",
            lambda: _precision(torch),
            torch.set_float32_matmul_precision,
            "highest",
        ),
        _Knob(
            "torch's detection of anomalies",
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda value: torch.autograd.set_detect_anomaly(*value),
            (False, True),
        ),
        _Knob(
            "torch's default device",
            lambda: str(torch.get_default_device()),
            lambda value: torch.set_default_device(None if value == "cpu" else value),
            "cpu",
            shared=False,
        ),
        _Knob(
            "torch's inference mode",
            torch.is_inference_mode_enabled,
            lambda value: _inference_mode(torch, value),
            False,
            shared=False,
        ),
        _Knob(
            "torch's recording of gradients",
            torch.is_grad_enabled,
            torch.set_grad_enabled,
            True,
            shared=False,
        ),
        _Knob(
            "torch's autocast",
            lambda: _autocast(torch),
            lambda value: _set_autocast(torch, value),
            shared=False,
        ),
        _Knob(
            "torch's number of threads",
            torch.get_num_threads,
            torch.set_num_threads,
            shared=False,
        ),
    ]


def _precision(torch: Any) -> str | None:
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # it was set by the newer way, a backend at a time
        return None


_modes: list[Any] = []  # a mode ends where its object does


def _inference_mode(torch: Any, value: bool) -> None:
    recording = torch.is_grad_enabled()
    mode = torch.inference_mode(value)
    mode.__enter__()
    _modes.append(mode)
    torch.set_grad_enabled(recording)


_AUTOCAST = ("cpu", "cuda")


def _autocast(torch: Any) -> dict[str, tuple[bool, Any]]:
    return {
        kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in _AUTOCAST
    }


def _set_autocast(torch: Any, value: Mapping[str, tuple[bool, Any]]) -> None:
    for kind, (enabled, dtype) in value.items():
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
