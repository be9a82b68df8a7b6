"""A run's folder: where it is, which is the newest, who trains in it, and its ``state.json``."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import BaseFileLock, FileLock, Timeout

from verl_core.trainer.near import near
from verl_core.trainer.output_folder import refused
from verl_core.trainer.state_file import (
    CONFIG,
    STATE,
    now,
    read_state,
    rebuilt,
    run_name,
    state_damage,
)
from verl_core.trainer.written import write_whole
from verl_reward_sdk import ConfigError, VerlRewardError

LOCK = ".lock"


class RunFolder:
    """``<output>/<name>`` of one run.

    Args:
        path: the folder; it exists.
        run_id: names this run to clients of its control plane, across resumes.
        known: what ``state.json`` says, or should: it is written again where the file does not.
        warning: how the file was found damaged, and what was done about it; empty where it was not.
    """

    def __init__(
        self,
        path: Path,
        run_id: str,
        *,
        known: Mapping[str, Any] | None = None,
        warning: str = "",
    ) -> None:
        self.path = path
        self.run_id = run_id
        self.warning = warning
        self._known = {"run_id": run_id, **(known or {})}

    @classmethod
    def create(cls, output: Path, name: str) -> RunFolder:
        """A new folder. Where ``<output>/<name>`` is taken, ``-2``, ``-3``, … follow the name.

        Raises:
            ConfigError: it cannot be made.
            VerlRewardError: nothing can be written into it, as on a full disk; it is gone again.
        """
        try:
            path = _made(output, name)
        except (OSError, ValueError) as error:
            raise refused(output, getattr(error, "strerror", None) or str(error)) from error
        known = {"name": name, "started": now()}
        folder = cls(path.resolve(), f"{path.name}-{secrets.token_hex(3)}", known=known)
        try:
            folder.note()
        except VerlRewardError:
            path.rmdir()
            raise
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
        """The folder of an earlier run. Where its ``state.json`` is lost or damaged, what it said
        is taken from the run's other files, and `warning` says so; nothing is written.

        Raises:
            ConfigError: it is no run's folder, or no whole checkpoint says whose.
        """
        damage = state_damage(path)
        known = read_state(path) if damage is None else rebuilt(path)
        if "run_id" not in known:
            raise ConfigError(
                f"{path} is no run's folder ({STATE}: {damage}; and no whole checkpoint says which "
                "run it was)",
                hint="name a folder that `verl-reward train` made, or put the file back from a "
                "copy; else start the run anew without --resume",
            )
        if (path / STATE).is_dir():
            raise ConfigError(
                f"{path / STATE} is a folder",
                hint="move it away: the file is made again from the run's checkpoint",
            )
        warning = (
            f"{near(path / STATE)} cannot be used ({damage}): what it said of the run "
            f"{known['run_id']} is taken from the run's other files"
        )
        return cls(path.resolve(), known["run_id"], known=known, warning=warning if damage else "")

    @classmethod
    def newest(cls, output: Path, name: str) -> RunFolder:
        """The most recently started run of that name that has a complete checkpoint.

        Raises:
            ConfigError: there is none under `output`.
        """
        from verl_core.trainer.checkpoint import checkpoints  # needs torch

        found = []
        for path in output.iterdir() if output.is_dir() else ():
            if checkpoints(path) and run_name(path) == name:
                state = read_state(path) if state_damage(path) is None else rebuilt(path)
                found.append((state.get("started", ""), path))
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
            ConfigError: a run trains in it, in this process or another; or it cannot be written.
        """
        lock = self._locked()
        if lock is None:
            yield
            return
        try:
            self.note(pid=os.getpid())
            yield
        finally:
            lock.release()

    def refuse_if_running(self) -> None:
        """Raise what `held` would raise now; nothing where the folder is free."""
        if (lock := self._locked()) is not None:
            lock.release()

    def _locked(self) -> BaseFileLock | None:
        """The folder's lock, held; None on a file system that knows no locks, where nobody can be
        told apart."""
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise self._running() from None
        except NotImplementedError:
            return None
        except OSError as error:
            raise ConfigError(
                f"{near(self.path)} cannot be written to: {error.strerror or error}",
                hint="make it writable, or copy it to where it is and name its new place: "
                "--resume NEWDIR",
            ) from error
        return lock

    def _running(self) -> ConfigError:
        pid = self.state().get("pid", "unknown")
        return ConfigError(
            f"the run in {near(self.path)} is still running (process {pid})",
            hint=f"wait for its end, or stop it first: Ctrl-C where it runs, or kill {pid}; "
            "both checkpoint it",
        )

    def note(self, **facts: Any) -> None:
        """Merge `facts` into ``state.json``, in one rename; a fact that is None is taken out.

        Raises:
            VerlRewardError: it cannot be written, as on a full disk; it stands as it was.
        """
        found = {**self._known, **read_state(self.path), **facts}
        state = {name: fact for name, fact in found.items() if fact is not None}
        write_whole(self.path / STATE, json.dumps(state, indent=1) + "\n")
        self._known = state

    def state(self) -> dict[str, Any]:
        return read_state(self.path)


def _made(output: Path, name: str) -> Path:
    output.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = output / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1


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
