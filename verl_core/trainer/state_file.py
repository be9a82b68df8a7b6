"""``state.json``: what a run's folder says of the run, and what to do where it says nothing.

People copy, edit and damage files; a disk may lose one. Nothing in it is worth more than the
checkpoints beside it, so what it should say is found again from the run's other files.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from verl_core.trainer import jsonl

STATE = "state.json"
CONFIG = "config.yaml"


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def seconds_since(time: Any) -> float | None:
    """From `time`, as `now` gave it, to now; None where it is no time."""
    if not _is_time(time):
        return None
    return (datetime.fromisoformat(now()) - datetime.fromisoformat(time)).total_seconds()


def _is_time(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


#: Facts that are read again -> whether a value may be one. Others are kept as they are.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "run_id": _is_text,
    "name": _is_text,
    "started": _is_text,
    "session": _is_time,
    "status": _is_text,
    "step": _is_count,
    "steps": _is_count,
    "pid": _is_count,
    "model": _is_text,
    "ended": _is_text,
    "train_seconds": _is_number,
    "peak_rss_gb": _is_number,
}
_NEEDED = ("run_id", "name", "started")


def read_state(path: Path) -> dict[str, Any]:
    """The facts of the run in `path`, without those that are none; empty where it is no run's
    folder, or its ``state.json`` cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads((path / STATE).read_bytes())
        if isinstance(found, dict):
            return {name: value for name, value in found.items() if _fits(name, value)}
    return {}


def _fits(name: str, value: Any) -> bool:
    return name not in _KINDS or _KINDS[name](value)


def state_damage(path: Path) -> str | None:
    """What is wrong with the ``state.json`` of `path`; None where it says what it should."""
    try:
        found = json.loads((path / STATE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return "it is missing"
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {error}"
    if not isinstance(found, dict):
        return "it holds no mapping"
    wrong = [name for name in _NEEDED if not _fits(name, found.get(name))]
    return f"it has no {wrong[0]}, or one that is none" if wrong else None


def rebuilt(path: Path) -> dict[str, Any]:
    """What the ``state.json`` of `path` should say: what it does say, and else the run's id as its
    newest whole checkpoint has it, its name as of its config, its start as of its first step.

    Without ``run_id`` where no whole checkpoint is there.
    """
    from verl_core.trainer.checkpoint import checkpoints  # needs torch

    state = {"name": run_name(path), "started": _first_time(path), **read_state(path)}
    if "run_id" not in state:
        whole = (found for found in reversed(checkpoints(path)) if not found.damage())
        run_id = next((found.info().get("run_id") for found in whole), None)
        if _is_text(run_id):
            state["run_id"] = run_id
    return state


def run_name(path: Path) -> str:
    """The name of the run in `path`: of its state, else of its config, else of its folder."""
    return known_name(path) or path.name


def known_name(path: Path) -> str | None:
    """The name of the run in `path`: of its state, else of its config; None where both are lost."""
    name = read_state(path).get("name")
    if name is None:
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
            config = yaml.safe_load((path / CONFIG).read_bytes())
            name = config.get("name") if isinstance(config, dict) else None
    return str(name) if _is_text(name) else None


def seconds_trained(path: Path) -> float | None:
    """The wall time of the run in `path` so far, that of evaluations and of loading included; None
    where nothing is known of it.

    Each session adds its own at its end. One that was killed could not: it counts up to the record
    of its last step. Read before that is dropped, to be trained again.
    """
    state = read_state(path)
    seconds = state.get("train_seconds")
    # Of a run from before sessions were noted, the whole of it is one.
    began = state.get("session", state.get("started") if seconds is None else None)
    times = [line.get("time") for line in jsonl.readable(path / "metrics.jsonl")]
    if not _is_time(began) or not times or not _is_time(times[-1]):
        return seconds
    passed = datetime.fromisoformat(str(times[-1])) - datetime.fromisoformat(str(began))
    return float(seconds or 0.0) + max(passed.total_seconds(), 0.0)


def _first_time(path: Path) -> str:
    time = next(jsonl.readable(path / "metrics.jsonl"), {}).get("time")
    return str(time) if _is_time(time) else now()
