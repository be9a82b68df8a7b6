"""A weight's setting in words, the same in warnings, on the command line and in the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def setting_text(setting: float | Mapping[str, Any]) -> str:
    """A weight's setting: ``2``, ``linear 2 → 0.5 over 200 steps``, ``1, 0.5 from step 5``."""
    if not isinstance(setting, Mapping):
        return f"{setting:g}"
    ((kind, body),) = setting.items()
    if kind in ("linear", "cosine"):
        start, steps = body.get("start", 0), body["steps"]
        when = f"steps {start} to {start + steps}" if start else f"{steps} steps"
        return f"{kind} {body['from']:g} → {body['to']:g} over {when}"
    if kind == "step":
        stairs = "".join(f", {value:g} from step {step}" for step, value in body["at"])
        return f"{body['from']:g}{stairs}"
    return f"{kind} {json.dumps(body)}"
