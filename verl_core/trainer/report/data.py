"""A run's folder, read: whatever of it is there, be the run finished or not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from verl_core.rewards.persistence import RevisionLog
from verl_core.rewards.revisions import WeightChange, change_of
from verl_core.trainer import jsonl, series
from verl_core.trainer.report.statistics import Floats
from verl_reward_sdk import VerlRewardError


@dataclass(frozen=True)
class Recipe:
    """One mount as the run's config names it."""

    name: str
    role: str
    plugin: str
    weight: Any
    penalty: float | None


@dataclass(frozen=True)
class RunData:
    """Everything that a report speaks of.

    Args:
        path: the run's folder.
        state: ``state.json``; empty where it is missing.
        config: ``config.yaml``, resolved; empty where it is missing.
        metrics: one mapping a step, ascending, each step once.
        samples: rows of ``samples.jsonl``.
        before, after: held-out rows, None where that evaluation was not made; `after` also where
            it was made of another step than the model is at.
        changes: the weights' audit log of this run, oldest first.
        earlier: the rows of ``eval/after.jsonl`` where they are of another step, as when the run
            was finished once, went on, and was stopped.
        generations: what each mount ran from which step on, in their order.
        evaluated: ``before`` and ``after`` -> the figures of that evaluation, where its rows are.
    """

    path: Path
    state: Mapping[str, Any]
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    samples: Sequence[Mapping[str, Any]]
    before: Sequence[Mapping[str, Any]] | None
    after: Sequence[Mapping[str, Any]] | None
    changes: Sequence[WeightChange]
    earlier: Sequence[Mapping[str, Any]] | None = None
    generations: Sequence[Mapping[str, Any]] = ()
    evaluated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def replaced(self) -> list[dict[str, Any]]:
        """Where a mount went on with other files or other code: ``{mount, step, number, files,
        version}``, `files` being asset -> SHA-256 of those that changed. A run that goes on counts
        its generations anew, and only what differs is told."""
        found: list[dict[str, Any]] = []
        last: dict[str, Mapping[str, Any]] = {}
        for record in self.generations:
            before = last.get(record["mount"])
            last[record["mount"]] = record
            old = {} if before is None else before["digests"]
            files = {name: d for name, d in record["digests"].items() if old.get(name) != d}
            if before is not None and (files or before["version"] != record["version"]):
                shown = {key: record[key] for key in ("mount", "step", "number", "version")}
                found.append({**shown, "files": files})
        return found

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.path.resolve().name)

    @property
    def steps(self) -> list[int]:
        """The steps that have figures."""
        return [int(record["step"]) for record in self.metrics]

    @property
    def keys(self) -> tuple[str, ...]:
        """Every metric's name, in order of first appearance."""
        return tuple(dict.fromkeys(key for record in self.metrics for key in record))

    @property
    def mounts(self) -> tuple[str, ...]:
        return series.reward_mounts(self.keys)

    @property
    def gates(self) -> tuple[str, ...]:
        return series.gates(self.keys)

    def series(self, key: str) -> Floats:
        """(S,) float64, one figure a step; NaN where a step has none."""
        found = (record.get(key) for record in self.metrics)
        return np.array(
            [value if isinstance(value, (int, float)) else np.nan for value in found],
            dtype=np.float64,
        )

    def first_step(self, revision: int) -> int | None:
        """The first step that was scored under `revision`; None where none was."""
        for record in self.metrics:
            if record.get(series.REVISION) == revision:
                return int(record["step"])
        return None

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The mounts of ``reward:``, in config order."""
        found = self.config.get("reward") or ()
        entries = [found] if isinstance(found, Mapping) else found
        return tuple(_recipe(entry) for entry in entries if isinstance(entry, Mapping))


def load_run(run_dir: Path) -> RunData:
    """Read the folder of a run.

    Raises:
        VerlRewardError: it is no run's folder, or a file in it cannot be read as what it should be.
    """
    if not (run_dir / "metrics.jsonl").exists() and not (run_dir / "state.json").exists():
        raise VerlRewardError(
            f"{run_dir} is not the folder of a run: it holds neither metrics.jsonl nor state.json"
        )
    state = _read_json(run_dir / "state.json")
    by_step = {record["step"]: record for record in jsonl.read(run_dir / "metrics.jsonl")}
    after = _rows(run_dir / "eval" / "after.jsonl")
    is_now = not after or after[0].get("step") in (
        None,
        state.get("step", max(by_step, default=None)),
    )
    before = _rows(run_dir / "eval" / "before.jsonl")
    sides = {"before": before, "after": after if is_now else None}
    return RunData(
        path=run_dir,
        state=state,
        config=_read_yaml(run_dir / "config.yaml"),
        metrics=[by_step[step] for step in sorted(by_step)],
        samples=list(jsonl.read(run_dir / "samples.jsonl")),
        before=before,
        after=after if is_now else None,
        earlier=None if is_now else after,
        evaluated={
            side: _read_json(run_dir / "eval" / f"{side}.json")
            for side, rows in sides.items()
            if rows
        },
        changes=_changes(run_dir / "weights.db", state.get("run_id")),
        generations=list(jsonl.read(run_dir / "generations.jsonl")),
    )


def _rows(path: Path) -> list[dict[str, Any]] | None:
    return list(jsonl.read(path)) or None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise VerlRewardError(f"{path}: expected JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise VerlRewardError(f"{path}: expected YAML: {error}") from error
    return found if isinstance(found, dict) else {}


def _changes(path: Path, run_id: str | None) -> list[WeightChange]:
    if not path.exists():
        return []
    log = RevisionLog(path)
    try:
        found = [change_of(record, before) for record, before in log.records(None)]
    finally:
        log.close()
    return [change for change in reversed(found) if run_id in (None, change.run_id)]


def _recipe(entry: Mapping[str, Any]) -> Recipe:
    return Recipe(
        name=str(entry.get("name") or entry.get("type")),
        role=str(entry.get("role") or "reward"),
        plugin=str(entry.get("plugin") or entry.get("node_class") or ""),
        weight=entry.get("weight", 1.0),
        penalty=entry.get("penalty"),
    )
