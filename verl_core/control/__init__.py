"""The HTTP control plane: weights, providers and health of a run.

Names are loaded on first use (PEP 562): a check of the port needs no FastAPI.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_core.control.app import create_app
    from verl_core.control.server import ControlServer
    from verl_core.control.state import ControlState

_MODULE_OF = {"ControlServer": "server", "ControlState": "state", "create_app": "app"}

__all__ = ["ControlServer", "ControlState", "create_app"]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'verl_core.control' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"verl_core.control.{module}"), name)
    globals()[name] = value
    return value
