"""A run's folder: where it is, which is the newest, who trains in it, and its ``state.json``."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from verl_core.trainer.near import near
from verl_reward_sdk import ConfigError

STATE = "state.json"
CONFIG = "config.yaml"
LOCK = ".lock"


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
    def to_resume(cls, wanted: Path | str, output: Path, name: str) -> RunFolder:
        """The folder of the run to go on with.

        Args:
            wanted: a run's folder, or ``"newest"``.
            output: where runs lie.
            name: of the run, for ``"newest"``.

        Raises:
            ConfigError: there is no such run.
        """
        return cls.newest(output, name) if wanted == "newest" else cls.open(Path(wanted))

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
        from verl_core.trainer.checkpoint import checkpoints  # needs torch

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

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder belongs to this process as long as this lasts.

        The operating system ends the hold with the process, however that ends: the folder of a run
        that was killed is free at once.

        Raises:
            ConfigError: a run trains in it, in this process or another.
        """
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise self._running() from None
        except NotImplementedError:  # a file system that knows no locks: nobody can be told apart
            yield
            return
        try:
            self.note(pid=os.getpid())
            yield
        finally:
            lock.release()

    def refuse_if_running(self) -> None:
        """Raise what `held` would raise now; nothing where the folder is free."""
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise self._running() from None
        except NotImplementedError:
            return
        lock.release()

    def _running(self) -> ConfigError:
        pid = self.state().get("pid", "unknown")
        return ConfigError(
            f"the run in {near(self.path)} is still running (process {pid})",
            hint=f"wait for its end, or stop it first: Ctrl-C where it runs, or kill {pid}; "
            "both checkpoint it",
        )

    def note(self, **facts: Any) -> None:
        """Merge `facts` into ``state.json``, in one rename.

        Raises:
            OSError: it cannot be written, as on a full disk; it stands as it was.
        """
        state = {**read_state(self.path), **facts}
        draft = self.path / f".{STATE}.draft"
        try:
            draft.write_text(json.dumps(state, indent=1) + "\n", "utf-8")
            os.replace(draft, self.path / STATE)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def state(self) -> dict[str, Any]:
        return read_state(self.path)


def read_state(path: Path) -> dict[str, Any]:
    """The facts of the run in `path`; empty where it is no run's folder."""
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return {}
    return state


def held_out_prompts(path: Path) -> tuple[Path | None, str]:
    """The evaluation file of the run in `path`, None where it has none or it is gone; and the key
    of its prompts."""
    try:
        config = yaml.safe_load((path / CONFIG).read_bytes())
    except (OSError, yaml.YAMLError):  # no run's folder, or one that never began
        config = None
    data = config.get("data") if isinstance(config, dict) else None
    if not isinstance(data, dict):
        return None, "prompt"
    file = Path(str(data.get("eval") or ""))
    return file if file.is_file() else None, str(data.get("prompt_key") or "prompt")


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
