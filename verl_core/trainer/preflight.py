"""Everything about a run that can be wrong before a model is loaded.

What needs no torch comes first: importing torch takes seconds, a mistake in the YAML or a taken
port is told at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verl_core.config import MountConfig, RunConfig
from verl_core.config.check import examine
from verl_core.config.data import DataRow
from verl_core.config.places import located
from verl_core.config.problems import combined, raise_all
from verl_core.control.listen import listen
from verl_core.control.token import token_from_environment
from verl_core.plugins import PluginRegistry
from verl_core.rewards.engine import RewardEngine
from verl_core.trainer.model_source import check_model
from verl_core.trainer.output_folder import check_output
from verl_core.trainer.run_folder import RunFolder
from verl_reward_sdk import ConfigError, ProviderConfig, RewardProvider

if TYPE_CHECKING:
    from verl_core.trainer.model_set import ModelSet
    from verl_core.trainer.pipeline import Pipeline
    from verl_core.trainer.reward import RewardNode


@dataclass(frozen=True)
class Preflight:
    """A run that was checked.

    Args:
        registry: the plugins, those that `cfg` names imported.
        train: rows of the training file.
        held_out: rows of the evaluation file, none where there is no such file.
        models: empty; `pipeline` is built around it.
        node_mounts: names of the training mounts that are `RewardNode`s.
        needs_tensors: whether a mount of training or evaluation is a `RewardNode`, which reads
            log-probabilities of the policy and the reference model.
    """

    cfg: RunConfig
    registry: PluginRegistry
    train: Sequence[DataRow]
    held_out: Sequence[DataRow]
    models: ModelSet
    pipeline: Pipeline
    node_mounts: tuple[str, ...]
    needs_tensors: bool


def preflight(
    cfg: RunConfig,
    registry: PluginRegistry,
    *,
    load_rewards: bool = False,
    resume: Path | str | None = None,
) -> Preflight:
    """Check `cfg` as far as can be without the model that it trains.

    Args:
        load_rewards: also load the plugins' rules, lists and models, and let go of them again.
        resume: the run to go on with, as in `Session`; it must not be running.

    Raises:
        ConfigError: all that is wrong, one line each.
    """
    examined = examine(cfg, registry)
    raise_all(examined.problems)
    _check_models(cfg)
    if resume is not None:  # before the port: a run that still runs holds its port too
        RunFolder.to_resume(resume, Path(cfg.output), cfg.name).refuse_if_running()
    else:
        _check_output(cfg)
    if cfg.server.enabled:
        check_port(cfg)
    _check_rewards(cfg, registry, load=load_rewards)
    _check_nodes(cfg)
    node_mounts = tuple(mount.name for mount in cfg.reward if mount.node_class is not None)
    models, pipeline = _build(cfg, registry, node_mounts)
    if resume is not None:
        from verl_core.trainer.resuming import check_resumed  # needs torch

        check_resumed(cfg, resume, needs_critic=pipeline.has("gae"))
    return Preflight(
        cfg=cfg,
        registry=registry,
        train=examined.train,
        held_out=examined.held_out[: cfg.data.eval_limit],
        models=models,
        pipeline=pipeline,
        node_mounts=node_mounts,
        needs_tensors=any(
            mount.node_class is not None for mount in (*cfg.reward, *cfg.eval_rewards().mounts)
        ),
    )


def _build(
    cfg: RunConfig, registry: PluginRegistry, node_mounts: Sequence[str]
) -> tuple[ModelSet, Pipeline]:
    """The dataflow's graph, checked, around models that are still to be loaded."""
    from verl_core.trainer.model_set import ModelSet
    from verl_core.trainer.pipeline import build_pipeline

    models = ModelSet(cfg)
    try:
        pipeline = build_pipeline(
            cfg, models, node_mounts=node_mounts, plugin_nodes=registry.nodes()
        )
    except ConfigError as error:
        raise cfg.error(error.path or "dataflow", error.message, hint=error.hint or "") from error
    return models, pipeline


def _check_output(cfg: RunConfig) -> None:
    try:
        check_output(Path(cfg.output), cfg.name)
    except ConfigError as error:
        raise located(cfg.root, error) from error


def _check_models(cfg: RunConfig) -> None:
    for name in filter(None, (cfg.model.path, cfg.model.critic)):
        try:
            check_model(name, base_dir=cfg.base_dir)
        except ConfigError as error:
            path = "model.path" if name == cfg.model.path else "model.critic"
            raise cfg.error(path, error.message, hint=error.hint or "") from error


class _NotBuilt(RewardProvider[ProviderConfig]):
    """Stands for a `RewardNode`: its class is checked here, its constructor may load a model."""

    name = "custom"


def _check_rewards(cfg: RunConfig, registry: PluginRegistry, *, load: bool) -> None:
    """Build the engines of training and evaluation: policy, conditions, providers' configs, and
    the weights at every step of their schedules."""
    for evaluation in (False, True):
        try:
            with closing(
                RewardEngine.from_config(
                    cfg.eval_rewards() if evaluation else cfg.rewards(),
                    registry=registry,
                    node_factory=lambda mount, folder: _NotBuilt(ProviderConfig()),
                    frozen_weights=evaluation,
                )
            ) as engine:
                if not evaluation or cfg.data.eval is not None:
                    _check_groups(cfg, engine, evaluation=evaluation)
                if load:
                    engine.setup()
        except ConfigError as error:
            raise placed(cfg, error, evaluation=evaluation) from error


def _check_groups(cfg: RunConfig, engine: RewardEngine, *, evaluation: bool) -> None:
    """Refuse a policy that compares the responses of a prompt where there is one of each."""
    key = "eval_n" if evaluation else "n"
    if getattr(cfg.rollout, key) > 1:
        return
    if getattr(engine.policy, "needs_groups", False):
        raise ConfigError(
            f"{engine.policy.name} compares the responses of a prompt, and rollout.{key} is 1",
            path="fusion.policy",
            hint=f"set rollout.{key} to 2 or more"
            + (", or give eval_reward: another policy" if evaluation else ""),
        )
    for name, mount in engine.mounts.items():
        if mount.config.normalize == "group" and not evaluation:
            raise ConfigError(
                "normalize: group compares the responses of a prompt, and rollout.n is 1: "
                f"every {name} would be 0",
                path=f"reward.{name}.normalize",
                hint="set rollout.n to 2 or more, or normalize: running",
            )


def placed(cfg: RunConfig, error: ConfigError, *, evaluation: bool = False) -> ConfigError:
    """`error` with the place of its YAML path, unless it names a place of its own; all of its lines
    where it has several.

    Args:
        evaluation: it is about the set that evaluation scores by.
    """
    problems = getattr(error, "problems", ()) or (error,)
    return combined([_placed(cfg, one, evaluation) for one in problems])


def _placed(cfg: RunConfig, error: ConfigError, evaluation: bool) -> ConfigError:
    path = error.path or "reward"
    section = path.partition(".")[0]
    if evaluation and error.file is None and cfg.eval_reward is not None:
        if section == "reward":
            error.path = f"eval_{path}"
        elif section == "fusion" and cfg.eval_reward.fusion is not None:
            error.path = f"eval_reward.{path}"
        elif section == "fusion":
            error.hint = f"eval_reward: has no fusion: of its own; {error.hint or ''}".rstrip("; ")
    return located(cfg.root, error, "reward")


def check_port(cfg: RunConfig) -> None:
    """Bind the control plane's port, and let go of it again."""
    has_token = token_from_environment() is not None
    try:
        listen(cfg.server.host, cfg.server.port, has_token=has_token).close()
    except ConfigError as error:
        path = error.path or "server.port"
        raise cfg.error(path, error.message, hint=error.hint or "") from error


def _check_nodes(cfg: RunConfig) -> None:
    """Import the classes of `node_class` mounts, compare their constructors with `init_kwargs`, and
    refuse a KL that would be paid twice."""
    for mount in cfg.reward:
        _check_node(cfg, mount, "reward")
    for mount in cfg.eval_reward.reward if cfg.eval_reward else ():
        _check_node(cfg, mount, "eval_reward")


def _check_node(cfg: RunConfig, mount: MountConfig, section: str) -> None:
    if mount.node_class is None:
        return
    from verl_core.trainer.node_loader import check_arguments, load_class
    from verl_core.trainer.reward import RewardNode

    key = "node_class"
    try:
        cls = load_class(mount.node_class, RewardNode, cfg.base_dir)
        key = "init_kwargs"
        check_arguments(cls, dict(mount.init_kwargs))
    except ConfigError as error:
        path = f"{section}.{mount.name}.{key}"
        raise cfg.error(path, error.message, hint=error.hint or "") from error
    if section == "reward" and not cfg.algorithm.nodes_may_pay_kl:
        _refuse_double_kl(cfg, mount, cls)


def _refuse_double_kl(cfg: RunConfig, mount: MountConfig, cls: type[RewardNode]) -> None:
    from verl_core.trainer.reward import DOUBLE_KL, DOUBLE_KL_HINT, uses_kl_penalty

    if uses_kl_penalty(cls):
        raise cfg.error(
            f"reward.{mount.name}.node_class",
            f"{cls.__name__} {DOUBLE_KL}",
            hint=DOUBLE_KL_HINT,
        )
