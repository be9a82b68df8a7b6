"""Weights, schedules and their changes in words, the same on the command line and in the report."""

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


def change_texts(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What a revision changed, a line a mount; empty where it changed nothing.

    A number that follows a number is ``tone 1 → 0.5``. A schedule has an arrow of its own, so that
    its change is told as ``tone → 1 (was linear 2 → 0.5 over 200 steps)``.
    """
    if not before:
        return [f"{name} {setting_text(setting)}" for name, setting in after.items()]
    changed = [name for name in after if before.get(name) != after[name]]
    lines = [_change_text(name, before.get(name), after[name]) for name in changed]
    return lines + [f"{name} removed" for name in before if name not in after]


def _change_text(name: str, was: Any, now: Any) -> str:
    if was is None:
        return f"{name} new: {setting_text(now)}"
    if isinstance(was, Mapping) or isinstance(now, Mapping):
        return f"{name} → {setting_text(now)} (was {setting_text(was)})"
    return f"{name} {setting_text(was)} → {setting_text(now)}"
