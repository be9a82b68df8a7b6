"""The fence round a plugin's code: whatever it raises becomes a `LoadFailure` with its place."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Literal, TypeVar

_Answer = TypeVar("_Answer")
#: Frames of the loader itself never tell where a plugin fails.
_OURS = (__file__, os.path.join(os.path.dirname(__file__), "loading.py"))


class LoadFailure(Exception):
    """Why a module cannot serve as a plugin. Internal: it becomes a record or a `PluginError`."""

    def __init__(
        self,
        reason: str,
        state: Literal["broken", "incompatible"] = "broken",
        api: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.state = state
        self.api = api


def guarded(action: Callable[[], _Answer], spec: ModuleSpec | None = None) -> _Answer:
    """Run a plugin's code; whatever it raises but Ctrl-C becomes a `LoadFailure`."""
    try:
        return action()
    except (KeyboardInterrupt, LoadFailure):
        raise
    except BaseException as error:  # a plugin may call sys.exit() at import
        raise LoadFailure(describe(error, spec)) from error


def describe(error: BaseException, spec: ModuleSpec | None = None) -> str:
    """``ImportError: no module x (/path/plugin.py:3)``: type, message, and the plugin's own line.

    The place is the innermost frame in the plugin's folder or, where there is none, the innermost.
    """
    place = ""
    if isinstance(error, SyntaxError) and error.filename:
        message, place = error.msg, f"{error.filename}:{error.lineno}"
    else:
        message = " ".join(str(error).split())
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith("<frozen ") and frame.filename not in _OURS
        ]
        own = [frame for frame in frames if _belongs(frame.filename, spec)] or frames
        if own:
            place = f"{own[-1].filename}:{own[-1].lineno}"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{text} ({place})" if place else text


def _belongs(file: str, spec: ModuleSpec | None) -> bool:
    if spec is None or spec.origin is None:
        return False
    folders = spec.submodule_search_locations
    if folders is None:
        return file == spec.origin
    return any(file.startswith(folder + os.sep) for folder in folders)
