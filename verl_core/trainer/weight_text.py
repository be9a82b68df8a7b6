"""Weights, schedules and their changes in words, the same on the command line and in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_core.rewards.setting_text import setting_text

__all__ = ["change_texts", "setting_text"]


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
