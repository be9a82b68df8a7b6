"""What the whole process shares, kept as it was while a provider is made and set up.

A plugin that changes the working folder, torch's default dtype or device, numpy's error handling or
the locale changes the run around it: models of another precision, files that are not found, steps
that raise. It is put back, with a warning that names who did it. This is not a fence: what a
provider does later, in `score`, or in threads of its own, is not watched.
"""

from __future__ import annotations

import contextlib
import locale
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Knob:
    """One thing that a process has once.

    Args:
        what: its name, for people.
        read: its value now.
        write: put a value back.
    """

    what: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


@contextlib.contextmanager
def kept(who: str) -> Iterator[None]:
    """Put back, and tell in the log as a fault of `who`, what the body changes of the process.

    torch is looked at where it is loaded, and never loaded for it: where the body is the first to
    load it, it must be left as it comes.
    """
    before = _values()
    try:
        yield
    finally:
        after = _values()
        knobs = {knob.what: knob for knob in _knobs()}
        for what, value in after.items():
            was = before.get(what, _TORCH_AT_FIRST.get(what))
            if value == was:
                continue
            logger.warning(
                "%s changed %s of the whole process from %s to %s: put back", who, what, was, value
            )
            try:
                knobs[what].write(was)
            except Exception as error:  # noqa: BLE001  (such as a folder that is gone)
                logger.warning("%s could not be put back: %s", what, error)


def _values() -> dict[str, Any]:
    return {knob.what: knob.read() for knob in _knobs()}


def _knobs() -> list[_Knob]:
    knobs = [
        _Knob("the working folder", _folder, os.chdir),
        _Knob("numpy's error handling", np.geterr, lambda value: np.seterr(**value)),
        _Knob(
            "the locale",
            lambda: locale.setlocale(locale.LC_ALL),
            lambda value: locale.setlocale(locale.LC_ALL, value),
        ),
    ]
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_default_device"):  # loaded, not half loaded
        knobs += [
            _Knob(
                _DTYPE,
                lambda: str(torch.get_default_dtype()),
                lambda value: torch.set_default_dtype(getattr(torch, value.removeprefix("torch."))),
            ),
            _Knob(
                _DEVICE,
                lambda: str(torch.get_default_device()),
                lambda value: torch.set_default_device(None if value == "cpu" else value),
            ),
            _Knob(_GRADIENTS, torch.is_grad_enabled, torch.set_grad_enabled),
        ]
    return knobs


_DTYPE = "torch's default dtype"
_DEVICE = "torch's default device"
_GRADIENTS = "torch's recording of gradients"
_TORCH_AT_FIRST = {_DTYPE: "torch.float32", _DEVICE: "cpu", _GRADIENTS: True}


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None
