"""Checkpoints: complete or not there.

A checkpoint is written into a hidden folder beside its place, flushed to the disk, and renamed in
one step. Whatever kills the process, ``checkpoints/`` holds only whole ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from verl_core.trainer.quiet import quiet_transformers
from verl_reward_sdk import ConfigError, VerlRewardError

_NAME = re.compile(r"step_(\d{6,})$")


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
        info: dict[str, Any] = json.loads((self.path / "trainer.json").read_text("utf-8"))
        return info

    def load(self, name: str) -> Any:
        """The object saved as `name`; tensors and plain values only."""
        return torch.load(self.path / f"{name}.pt", map_location="cpu", weights_only=True)


def checkpoints(run_dir: Path) -> list[Checkpoint]:
    """The run's complete checkpoints, oldest first."""
    folder = run_dir / "checkpoints"
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and (path / "trainer.json").is_file():
            found.append(Checkpoint(path, int(match.group(1))))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def latest(run_dir: Path) -> Checkpoint:
    """The newest complete checkpoint.

    Raises:
        ConfigError: there is none.
    """
    found = checkpoints(run_dir)
    if not found:
        raise ConfigError(
            f"{run_dir} holds no complete checkpoint",
            hint="start the run anew without --resume",
        )
    return found[-1]


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
    """Write the checkpoint of `step`, then remove all but the newest `keep`.

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
    if any(found.step == step for found in checkpoints(run_dir)):
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
        (draft / "trainer.json").write_text(json.dumps({**info, "step": step}, indent=1), "utf-8")
        _flush(draft)
        if final.exists():  # what is left of one that somebody took apart
            shutil.rmtree(final)
        draft.rename(final)
        _flush_folder(folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        free = shutil.disk_usage(run_dir).free / 2**30
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {folder}: {error}. "
            f"{free:.1f} GiB are free there; earlier checkpoints are intact. "
            "Make room, or set output= to another disk, and resume."
        ) from error
    for old in checkpoints(run_dir)[: -max(keep, 1)]:
        shutil.rmtree(old.path)
    return Checkpoint(final, step)


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
