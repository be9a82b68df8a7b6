"""Checkpoints: complete or not there.

A checkpoint is written into a hidden folder beside its place, flushed to the disk, and renamed in
one step. Whatever kills the process, ``checkpoints/`` holds only whole ones. What damages one later
shows: ``trainer.json`` lists its files with their sizes and SHA-256, and its own; `latest` takes no
other than a whole one. Files are hashed while the disk still writes them: about 0.6 s a GiB.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from verl_core.trainer import seal
from verl_core.trainer.quiet import quiet_transformers
from verl_reward_sdk import ConfigError, VerlRewardError

_NAME = re.compile(r"step_(\d{6,})$")
_FACTS = "trainer.json"
_FILES, _DIGESTS, _MARK = "files", "sha256", "mark"
#: What is there in every checkpoint, and of what kind.
_ALWAYS = {"step": int, "autocast": str}


class CheckpointError(VerlRewardError):
    """A checkpoint could not be written, the one before it is intact; or one cannot be read."""


#: What torch raises of files that are none of its own, or no longer.
_UNREADABLE = (OSError, RuntimeError, ValueError, LookupError, EOFError, pickle.UnpicklingError)


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
        ours = (_FILES, _DIGESTS, _MARK)
        return {name: fact for name, fact in self._facts().items() if name not in ours}

    def damage(self) -> str | None:
        """What is wrong with it, in words that name a file; None where it is whole.

        Every byte is read: of a file that this process has read before, and that was not written
        since, only size and times. One that was written before digests were listed is taken as
        whole where its sizes are right; before files were, where its ``trainer.json`` can be read.
        """
        try:
            facts = self._facts()
        except (OSError, ValueError, RecursionError) as error:
            return f"{_FACTS} cannot be read ({error})"
        sizes, listed = facts.get(_FILES, {}), facts.get(_DIGESTS, {})
        odd = self._odd(facts, sizes, listed)
        return f"{_FACTS} {odd}" if odd else seal.damage(self.path, sizes, listed)

    def _odd(self, facts: dict[str, Any], sizes: object, listed: object) -> str | None:
        """What ``trainer.json`` cannot have said when it was written."""
        for name, kind in _ALWAYS.items():
            if not isinstance(facts.get(name), kind):
                return f"does not say {name}"
        if facts["step"] != self.step:
            return f"is of step {facts['step']}"
        if not isinstance(sizes, dict) or not isinstance(listed, dict):
            return "holds no list of its files"
        expected = facts.pop(_MARK, None)
        if (expected is not None or listed) and expected != seal.mark(facts):
            return "is not as it was written (its SHA-256 differs)"
        if listed and listed.keys() != sizes.keys():
            return "does not list all of its files"
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
        """The object saved as `name`; tensors and plain values only.

        Raises:
            CheckpointError: it cannot be read, as may be of one without digests.
        """
        path = self.path / f"{name}.pt"
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except _UNREADABLE as error:
            raise CheckpointError(
                f"{path} cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}; "
                f"remove {self.path.name} to go on from the checkpoint before it"
            ) from error


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
        with ThreadPoolExecutor(1) as beside:  # the disk writes while the processor hashes
            hashing = beside.submit(seal.digests, draft)
            _flush(draft)
            facts = {**info, "step": step, _FILES: _sizes(draft), _DIGESTS: hashing.result()}
        facts[_MARK] = seal.mark(facts)
        (draft / _FACTS).write_text(json.dumps(facts, indent=1), "utf-8")
        _flush_file(draft / _FACTS)
        _flush_folder(draft)
        if final.exists():  # what is left of one that somebody took apart, or damaged
            shutil.rmtree(final)
        draft.rename(final)
        _flush_folder(folder)
    except Exception as error:  # on a full disk tokenizers raises nothing narrower
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
    kept = 0
    for one in reversed(checkpoints(run_dir)):
        if kept < keep and not one.damage():
            kept += 1
        elif one.step < step:
            shutil.rmtree(one.path)


def _sizes(folder: Path) -> dict[str, int]:
    """Every file under `folder` with its bytes."""
    return {name: path.stat().st_size for name, path in seal.files_of(folder).items()}


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            _flush_file(path)
        else:
            _flush_folder(path)
    _flush_folder(folder)


def _flush_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
