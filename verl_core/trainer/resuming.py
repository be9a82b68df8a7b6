"""What a run that goes on must have in common with what it was: refused before models are loaded.

Of what may differ, ``optim:``, ``trainer:``, ``rollout:`` and ``algorithm:`` hold as they are
written now. Weights are the store's (`verl_core.rewards.weights`), with what `kept_weights` finds.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_core.config import RunConfig
from verl_core.config.weight import WeightSchedule
from verl_core.rewards.revisions import KeptWeights
from verl_core.rewards.schedules import Setting, setting_form
from verl_core.rewards.weights import WeightStore
from verl_core.trainer import checkpoint, jsonl, reward_state, series
from verl_core.trainer.checkpoint import Checkpoint
from verl_core.trainer.model_source import ModelSource, check_model, identity
from verl_core.trainer.model_source.identity import PARTS, differences
from verl_core.trainer.near import near
from verl_core.trainer.run_folder import RunFolder
from verl_core.trainer.state_file import known_name

_LARGEST_REVISION = 1 << 53


def check_resumed(cfg: RunConfig, resume: Path | str, *, needs_critic: bool) -> None:
    """Refuse to go on where the config asks for what the checkpoint cannot give. Reads every byte
    of the checkpoint.

    Args:
        resume: as in `Session`.
        needs_critic: whether the dataflow has one.

    Raises:
        ConfigError: it is a run of another name; no checkpoint is whole; the model is another; or
            there is no critic in it.
    """
    folder = RunFolder.to_resume(resume, Path(cfg.output), cfg.name)
    refuse_other_name(cfg, folder.path)
    resumed = checkpoint.latest(folder.path, lambda said: None)  # said by who takes it
    if needs_critic and not resumed.has("critic"):
        raise cfg.error(
            "dataflow.advantage",
            f"gae needs a critic, and {near(resumed.path)} holds none: the run was trained "
            "without gae",
            hint="resume with the dataflow that it was trained with, or start a new run without "
            "--resume",
        )
    refuse_other_model(cfg, resumed, check_model(cfg.model.path, base_dir=cfg.base_dir))
    if needs_critic:
        name = cfg.model.critic or cfg.model.path
        refuse_other_critic(cfg, resumed, check_model(name, base_dir=cfg.base_dir))


def refuse_other_name(cfg: RunConfig, run_dir: Path) -> None:
    """Refuse the run of another config, as where a person names the wrong folder.

    Raises:
        ConfigError: the run in `run_dir` has another name than `cfg`; it says both.
    """
    name = known_name(run_dir)
    if name is not None and name != cfg.name:
        raise cfg.error(
            "name",
            f"the run in {near(run_dir)} is named {name!r}, and this config {cfg.name!r}",
            hint=f"to go on with that run under this config, add {shlex.quote(f'name={name}')}; "
            "else name a run of this config, or leave --resume out",
        )


def nothing_left(last: Checkpoint) -> str:
    """What is said where a run that is resumed has made all of its steps."""
    return (
        f"nothing is left to train: {near(last.path)} holds step {last.step}, and trainer.steps"
        f" is {last.step}; a higher one trains on"
    )


def weights_in_force(cfg: RunConfig, store: WeightStore | None) -> RunConfig:
    """`cfg` with the weights that the run began with: the store keeps them, whatever the config of
    a resumed run says. Those that are pinned over them stand in ``weights.db`` alone."""
    if store is None:
        return cfg
    dials = store.newest().dials
    mounts = [
        mount.model_copy(update={"weight": _weight(dials[mount.name].base)})
        if mount.name in dials
        else mount
        for mount in cfg.reward
    ]
    return cfg.model_copy(update={"reward": tuple(mounts)})


def _weight(setting: Setting) -> float | WeightSchedule:
    form = setting_form(setting)
    return form if isinstance(form, float) else WeightSchedule.model_validate(form)


def refuse_other_model(cfg: RunConfig, resumed: Checkpoint, found: ModelSource) -> None:
    """Refuse a ``model.path`` that is not the model which the run was trained from: prompts would
    be read by another tokenizer, and the KL measured from another reference.

    A model that lies elsewhere now is the same one. One that is still to be downloaded passes, and
    so does any where the checkpoint is from before models were noted.

    Raises:
        ConfigError: it is another model; it says in what.
    """
    _refuse(cfg, "model.path", resumed.info().get("model"), found, tuple(PARTS.values()))


def refuse_other_critic(cfg: RunConfig, resumed: Checkpoint, found: ModelSource) -> None:
    """The same of the critic, whose weights are in the checkpoint: only its shape must fit."""
    key = "model.critic" if cfg.model.critic else "model.path"
    _refuse(cfg, key, resumed.info().get("critic"), found, (PARTS["config"],))


def _refuse(cfg: RunConfig, key: str, was: Any, found: ModelSource, parts: tuple[str, ...]) -> None:
    if not isinstance(was, Mapping) or not (found.path / "config.json").is_file():
        return
    differing = [part for part in differences(was, identity(found.path, found.id)) if part in parts]
    if not differing:
        return
    path = str(was.get("path"))
    what = " and ".join(filter(None, (", ".join(differing[:-1]), differing[-1])))
    if path == found.id:
        message = f"{path} has changed since the run was trained from it: another {what}"
        hint = "put its files back as they were, or start a new run without --resume"
    else:
        message = f"the run was trained from {path}, and {found.id} has another {what}"
        hint = f"set {key} to {path} again, or start a new run without --resume"
    raise cfg.error(key, message, hint=hint)


def kept_weights(run_dir: Path, resumed: Checkpoint) -> KeptWeights:
    """What the run's files beside ``weights.db`` know of its weights: those of the checkpoint, and
    the highest revision that a step was trained with."""
    record = reward_state.weights(resumed)
    highest = max(_revisions(run_dir / "metrics.jsonl"), default=0)
    if record is not None:
        highest = max(highest, record.revision)
    return KeptWeights(step=resumed.step, revision=highest, record=record)


def _revisions(path: Path) -> list[int]:
    """The steps' revisions that stand in ``metrics.jsonl``, as far as it can be read."""
    found = []
    for line in jsonl.readable(path):
        revision = line.get(series.REVISION)
        if isinstance(revision, int | float) and 0 < revision < _LARGEST_REVISION:
            found.append(int(revision))
    return found
