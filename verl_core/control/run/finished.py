"""The folder of a run that is over: what it was, and its weights, without touching it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from verl_core.rewards.persistence import RevisionLog
from verl_core.rewards.schedules import Setting, parse_schedule
from verl_reward_sdk.errors import ConfigError

_PARTS = ("", "-wal")
_TRIES = 5

READ_ONLY = (
    "this server shows the folder of a run, and changes nothing in it: to go on with the run, use"
    " `verl-reward train --resume`; to score with its rewards, `verl-reward serve RUN.YAML`"
)


class FinishedRun:
    """What the files of a run's folder say of it.

    Args:
        folder: as ``verl-reward train`` made it.

    Raises:
        ConfigError: it is no run's folder.
    """

    def __init__(self, folder: Path) -> None:
        if not any((folder / name).is_file() for name in ("metrics.jsonl", "state.json")):
            raise ConfigError(
                f"{folder} is no run's folder: it holds neither metrics.jsonl nor state.json",
                path="--run",
                hint="name a folder that `verl-reward train` made, such as runs/customer-service",
            )
        self.folder = folder
        self.state = _read(folder / "state.json", json.loads)
        self.config = _read(folder / "config.yaml", yaml.safe_load)
        self.run_id = str(self.state.get("run_id") or folder.resolve().name)

    @property
    def facts(self) -> dict[str, Any]:
        """For `RunFiles`: name, model, status, steps, times and the error that ended it."""
        model = self.config.get("model")
        path = model.get("path") if isinstance(model, Mapping) else None
        names = ("status", "steps", "started", "ended", "error")
        facts = {name: self.state.get(name) for name in names}
        shown = self.config.get("name") or self.folder.resolve().name
        facts |= {"name": str(shown), "model": None if path is None else Path(str(path)).name}
        if facts["status"] == "running":
            facts["note"] = (
                "This run is still training, or was killed. Its figures are read as they come; its"
                " weights are those of when this server was started."
            )
        return {name: fact for name, fact in facts.items() if fact is not None}

    @property
    def mounts(self) -> list[dict[str, Any]]:
        """As ``GET …/providers`` shows mounts that are not loaded, in config order."""
        return [
            {
                "name": str(entry.get("name") or entry.get("type")),
                "plugin": str(entry.get("plugin") or entry.get("node_class") or ""),
                "role": str(entry.get("role") or "reward"),
                "state": "not loaded",
                "last_error": None,
            }
            for entry in self._entries()
        ]

    def weights(self) -> dict[str, Setting]:
        """Mount -> weight or schedule, as the config has them; those of gates left out."""
        found = {}
        for entry in self._entries():
            if entry.get("role") != "gate":
                name = str(entry.get("name") or entry.get("type"))
                try:
                    found[name] = parse_schedule(entry.get("weight", 1.0))
                except ValueError as error:
                    raise ConfigError(
                        str(error), path=f"reward.{name}.weight", file=self.folder / "config.yaml"
                    ) from error
        return found

    def copy_weights(self, target: Path) -> dict[str, Setting]:
        """Copy its ``weights.db`` to `target`, for a `WeightStore` of the same run.

        Returns:
            What that store must be given as the config's weights, so that it adds no revision.

        Raises:
            ConfigError: the file cannot be read.
        """
        source = self.folder / "weights.db"
        if not source.exists():
            return self.weights()
        _copy(source, target)
        log = RevisionLog(target)
        try:
            newest = log.latest(self.run_id)
        finally:
            log.close()
        if newest is None:
            return self.weights()
        return {name: dial.base for name, dial in newest.dials.items()}

    def _entries(self) -> Sequence[Mapping[str, Any]]:
        found = self.config.get("reward") or ()
        entries = [found] if isinstance(found, Mapping) else found
        if not isinstance(entries, Sequence):
            return ()
        return [entry for entry in entries if isinstance(entry, Mapping)]


def _copy(source: Path, target: Path) -> None:
    """A copy of a SQLite file and of its log, which SQLite itself would have to write beside it to
    read it; taken again where it changed meanwhile."""
    pairs = [
        (source.with_name(source.name + end), target.with_name(target.name + end)) for end in _PARTS
    ]
    for _ in range(_TRIES):
        before = [_stamp(old) for old, _ in pairs]
        try:
            for (old, new), stamp in zip(pairs, before, strict=True):
                new.unlink(missing_ok=True)
                if stamp is not None:
                    shutil.copyfile(old, new)
        except OSError as error:
            raise _unread(source, error.strerror or str(error)) from error
        if before == [_stamp(old) for old, _ in pairs]:
            return
    raise _unread(source, "another program keeps changing it")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _unread(source: Path, why: str) -> ConfigError:
    hint = "put the file back from a copy, or move it away: the rest is shown without it"
    return ConfigError(f"the run's weights cannot be read: {why}", file=source, hint=hint)


def _read(path: Path, parse: Any) -> dict[str, Any]:
    """The mapping that a file holds; an empty one where it is missing or damaged."""
    try:
        found = parse(path.read_bytes())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
