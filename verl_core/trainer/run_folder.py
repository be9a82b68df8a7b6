"""A run's folder: where it is, which is the newest, and the few facts in its ``state.json``."""

from __future__ import annotations

import json
import os
import secrets
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from verl_core.trainer.checkpoint import checkpoints
from verl_reward_sdk import ConfigError

STATE = "state.json"


class RunFolder:
    """``<output>/<name>`` of one run.

    Args:
        path: the folder; it exists.
        run_id: names this run to clients of its control plane, across resumes.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.run_id = run_id

    @classmethod
    def create(cls, output: Path, name: str) -> RunFolder:
        """A new folder. Where ``<output>/<name>`` is taken, ``-2``, ``-3``, … follow the name."""
        output.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = output / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
                break
            except FileExistsError:
                number += 1
        folder = cls(path.resolve(), f"{path.name}-{secrets.token_hex(3)}")
        folder.note(run_id=folder.run_id, name=name, started=now())
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an earlier run.

        Raises:
            ConfigError: it is no run's folder.
        """
        state = read_state(path)
        if "run_id" not in state:
            raise ConfigError(
                f"{path} is no run's folder (it has no {STATE})",
                hint="name a folder that `verl-reward train` made",
            )
        return cls(path.resolve(), str(state["run_id"]))

    @classmethod
    def newest(cls, output: Path, name: str) -> RunFolder:
        """The most recently started run of that name that has a complete checkpoint.

        Raises:
            ConfigError: there is none under `output`.
        """
        found = []
        for path in output.iterdir() if output.is_dir() else ():
            state = read_state(path)
            if state.get("name") == name and checkpoints(path):
                found.append((str(state.get("started", "")), path))
        if not found:
            raise ConfigError(
                f"there is no run named {name!r} with a complete checkpoint under "
                f"{output.resolve()}",
                hint="give its folder: --resume DIR, or start one without --resume",
            )
        return cls.open(max(found)[1])

    def note(self, **facts: Any) -> None:
        """Merge `facts` into ``state.json``, in one rename."""
        state = {**read_state(self.path), **facts}
        draft = self.path / f".{STATE}.draft"
        draft.write_text(json.dumps(state, indent=1) + "\n", "utf-8")
        os.replace(draft, self.path / STATE)

    def state(self) -> dict[str, Any]:
        return read_state(self.path)


def read_state(path: Path) -> dict[str, Any]:
    """The facts of the run in `path`; empty where it is no run's folder."""
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return {}
    return state


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
