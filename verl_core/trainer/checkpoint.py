"""Checkpoints: complete or not there.

A checkpoint is written into a hidden folder beside its place, flushed to the disk, and renamed in
one step. Whatever kills the process, ``checkpoints/`` holds only whole ones. What damages one later
shows: ``trainer.json`` lists its files with their sizes, and `latest` takes no other than a whole
one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from verl_core.trainer.quiet import quiet_transformers
from verl_reward_sdk import ConfigError, VerlRewardError

_NAME = re.compile(r"step_(\d{6,})$")
_FACTS = "trainer.json"
_FILES = "files"


class CheckpointError(VerlRewardError):
    """A checkpoint could not be written; the one before it is intact."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on the disk.

    Args:
        path: its folder: ``policy/`` (Hugging Face format), ``*.pt``, ``trainer.json``.
        step: the last step that it holds.
    """

    path: Path
    step: int

    @property
    def policy(self) -> Path:
        return self.path / "policy"

    def info(self) -> dict[str, Any]:
        """What the trainer noted in it."""
        facts = self._facts()
        facts.pop(_FILES, None)
        return facts

    def damage(self) -> str | None:
        """What is wrong with its files, in words that name one; None where it is whole.

        One that was written before files were listed is taken as whole where its ``trainer.json``
        can be read.
        """
        try:
            facts = self._facts()
        except (OSError, ValueError) as error:
            return f"{_FACTS} cannot be read ({error})"
        for name, size in facts.get(_FILES, {}).items():
            try:
                found = (self.path / name).stat().st_size
            except OSError:
                return f"{name} is missing"
            if found != size:
                return f"{name} has {found} bytes and had {size}"
        return None

    def _facts(self) -> dict[str, Any]:
        facts = json.loads((self.path / _FACTS).read_text("utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("it holds no mapping")
        return facts

    def has(self, name: str) -> bool:
        """Whether an object was saved as `name`."""
        return (self.path / f"{name}.pt").is_file()

    def load(self, name: str) -> Any:
        """The object saved as `name`; tensors and plain values only."""
        return torch.load(self.path / f"{name}.pt", map_location="cpu", weights_only=True)


def checkpoints(run_dir: Path) -> list[Checkpoint]:
    """The run's complete checkpoints, oldest first. `damage` says whether one is whole still."""
    folder = run_dir / "checkpoints"
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and (path / _FACTS).is_file():
            found.append(Checkpoint(path, int(match.group(1))))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def holds(run_dir: Path, step: int) -> bool:
    """Whether a whole checkpoint of `step` is there."""
    return any(found.step == step and not found.damage() for found in checkpoints(run_dir))


def latest(run_dir: Path, warn: Callable[[str], object] = warnings.warn) -> Checkpoint:
    """The newest checkpoint that is whole.

    Args:
        warn: told of every newer one that is damaged, and so not taken.

    Raises:
        ConfigError: there is none; it names what is wrong with those that are there.
    """
    damaged: list[str] = []
    for found in reversed(checkpoints(run_dir)):
        damage = found.damage()
        if damage is None:
            for one in damaged:
                warn(f"the checkpoint {one}: it is not taken, but the one before it")
            return found
        damaged.append(f"{found.path.name} is damaged: {damage}")
    if damaged:
        raise ConfigError(
            f"all checkpoints in {run_dir} are damaged: " + "; ".join(damaged),
            hint="put the files back from a copy, or start the run anew without --resume",
        )
    raise ConfigError(
        f"{run_dir} holds no complete checkpoint",
        hint="start the run anew without --resume",
    )


def save(
    run_dir: Path,
    step: int,
    *,
    policy: Any,
    tokenizer: Any,
    objects: Mapping[str, Any],
    info: Mapping[str, Any],
    keep: int,
) -> Checkpoint:
    """Write the checkpoint of `step`, then remove all before it but the newest `keep`.

    Args:
        policy: a Hugging Face model, saved whole in its own format.
        tokenizer: saved beside it.
        objects: name -> state dict, saved as ``<name>.pt``.
        info: what goes into ``trainer.json``.

    Raises:
        CheckpointError: the disk is full or not writable. What was there before is untouched.
    """
    folder = run_dir / "checkpoints"
    final = folder / f"step_{step:06d}"
    draft = folder / f".draft_{step:06d}"
    if holds(run_dir, step):
        return Checkpoint(final, step)  # the same step of the same run has the same bits
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(".draft_*"):
            shutil.rmtree(stale)
        draft.mkdir()
        with quiet_transformers():
            policy.save_pretrained(draft / "policy")
            tokenizer.save_pretrained(draft / "policy")
        for name, value in objects.items():
            torch.save(value, draft / f"{name}.pt")
        facts = {**info, "step": step, _FILES: _sizes(draft)}
        (draft / _FACTS).write_text(json.dumps(facts, indent=1), "utf-8")
        _flush(draft)
        if final.exists():  # what is left of one that somebody took apart, or damaged
            shutil.rmtree(final)
        draft.rename(final)
        _flush_folder(folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        free = shutil.disk_usage(run_dir).free / 2**30
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {folder}: {error}. "
            f"{free:.1f} GiB are free there; earlier checkpoints are intact. "
            "Make room there, or move the run's folder to a larger disk and name its new place: "
            "--resume NEWDIR."
        ) from error
    _sweep(run_dir, step, max(keep, 1))
    return Checkpoint(final, step)


def _sweep(run_dir: Path, step: int, keep: int) -> None:
    """Remove what is older than the newest `keep` whole checkpoints, and damaged ones before
    `step`: they take no place of a whole one."""
    found = checkpoints(run_dir)
    kept = [one.step for one in found if not one.damage()][-keep:]
    for one in found:
        if one.step < step and one.step not in kept:
            shutil.rmtree(one.path)


def _sizes(folder: Path) -> dict[str, int]:
    """Every file under `folder` with its bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        else:
            _flush_folder(path)
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
