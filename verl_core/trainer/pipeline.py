"""The run's dataflow: from the names in ``dataflow:`` to a checked graph of nodes.

Where the config has no ``dataflow:``, it follows from the rest: the actor (and the reference model
where a KL term or a node needs it), the rewards, the gates, GRPO, and the clipped update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_core.config import RunConfig
from verl_core.config.dataflow import default_dataflow
from verl_core.dataflow import Graph, Node, Stage
from verl_core.trainer.model_set import ModelSet
from verl_core.trainer.node_loader import build, load_class
from verl_core.trainer.nodes.actor import ActorNode, RefModelNode
from verl_core.trainer.nodes.advantage import GAENode, GDPONode, GRPONode
from verl_core.trainer.nodes.fuse import FuseNode
from verl_core.trainer.nodes.update import UpdateNode
from verl_core.trainer.reward import ProviderNode
from verl_reward_sdk import ConfigError

BUILT_IN = ("actor", "ref_model", "grpo", "gdpo", "gae", "ppo")
#: What the trainer lays into a step's batch before the first stage.
INPUTS = frozenset({"rows"})


@dataclass(frozen=True)
class Pipeline:
    """A step in three parts, each a run of stages.

    Args:
        graph: all stages, checked.
        rollout: up to the first mount: what a retry of the rewards does not repeat.
        reward: from the first mount to fusion.
        learn: advantage and update.
    """

    graph: Graph
    rollout: tuple[Stage, ...]
    reward: tuple[Stage, ...]
    learn: tuple[Stage, ...]

    def has(self, node: str) -> bool:
        return any(item.name == node for stage in self.graph.stages for item in stage.nodes)


def build_pipeline(
    cfg: RunConfig,
    models: ModelSet,
    *,
    node_mounts: Sequence[str] = (),
    plugin_nodes: Mapping[str, type] | None = None,
) -> Pipeline:
    """The checked graph. Nothing is loaded: nodes ask `models` when they run.

    Names of stages and nodes were checked by `check_run`; here it is seen that data can flow.

    Args:
        cfg: the run.
        models: filled before the first step.
        node_mounts: mounts that are `RewardNode`s; they read log-probabilities.
        plugin_nodes: nodes that plugins offer.

    Raises:
        ConfigError: a column that no node writes in time, or a mount before one that it follows.
    """
    kl_in_reward = cfg.algorithm.kl_coef > 0 and cfg.algorithm.kl_in == "reward"
    needs_reference = cfg.algorithm.kl_coef > 0 or bool(node_mounts)
    flow: Mapping[str, Sequence[Any]] = (
        cfg.dataflow
        if cfg.dataflow is not None
        else default_dataflow(cfg.reward, needs_reference=needs_reference)
    )
    names = [mount.name for mount in cfg.reward]
    _check_order(flow, cfg)
    critic = any("gae" in _names(items) for items in flow.values())
    with_log_probs = bool(node_mounts) or kl_in_reward or _passes(cfg) > 1 or _custom(flow, names)
    stages: list[Stage] = []
    last_mounts = max(
        (place for place, items in enumerate(flow.values()) if set(_names(items)) & set(names)),
        default=-1,
    )
    for place, (stage, items) in enumerate(flow.items()):
        nodes: list[Node] = []
        for item in items:
            name = _name(item)
            if name in names:
                _add_mount(nodes, name, node_mounts)
            elif isinstance(item, str) and name in BUILT_IN:
                nodes.append(_built_in(name, cfg, models, critic, with_log_probs))
            else:
                nodes.append(_own(item, stage, cfg.base_dir, plugin_nodes or {}))
        stages.append(Stage(stage, tuple(nodes)))
        if place == last_mounts:
            kl = cfg.algorithm.kl_coef if kl_in_reward else 0.0
            fuse = FuseNode(names, models, kl_coef=kl, estimator=cfg.algorithm.kl_estimator)
            stages.append(Stage("fusion", (fuse,), note="it follows the last mounts"))
    graph = Graph(stages, INPUTS | {"scoring"})
    return _split(graph)


def _split(graph: Graph) -> Pipeline:
    kinds = [any(isinstance(node, ProviderNode) for node in stage.nodes) for stage in graph.stages]
    first = kinds.index(True)
    fused = next(
        place
        for place, stage in enumerate(graph.stages)
        if any(isinstance(node, FuseNode) for node in stage.nodes)
    )
    return Pipeline(
        graph, graph.stages[:first], graph.stages[first : fused + 1], graph.stages[fused + 1 :]
    )


def _check_order(flow: Mapping[str, Sequence[Any]], cfg: RunConfig) -> None:
    """A mount may follow (`after:`, `when:`) mounts of its own stage or an earlier one."""
    place = {_name(item): i for i, items in enumerate(flow.values()) for item in items}
    for mount in cfg.reward:
        for other in sorted(mount.depends_on):
            if place[other] > place[mount.name]:
                raise ConfigError(
                    f"mount {mount.name!r} follows {other!r}, which stands in a later stage",
                    path="dataflow",
                    hint=f"move {mount.name} behind {other}",
                )


def _add_mount(nodes: list[Node], name: str, node_mounts: Sequence[str]) -> None:
    """Neighbouring mounts of a stage become one node, because they are scored at once."""
    before = nodes[-1] if nodes and isinstance(nodes[-1], ProviderNode) else None
    mounts = [*(before.mounts if before else ()), name]
    reads_tensors = any(mount in node_mounts for mount in mounts)
    node = ProviderNode(mounts, reads_tensors=reads_tensors)
    if before is None:
        nodes.append(node)
    else:
        nodes[-1] = node


def _built_in(
    name: str, cfg: RunConfig, models: ModelSet, critic: bool, with_log_probs: bool
) -> Node:
    algorithm = cfg.algorithm
    if name == "actor":
        sampling = {
            "n": cfg.rollout.n,
            "max_new_tokens": cfg.rollout.max_new_tokens,
            "temperature": cfg.rollout.temperature,
            "top_p": cfg.rollout.top_p,
            "top_k": cfg.rollout.top_k,
        }
        return ActorNode(models, sampling, seed=cfg.seed, with_log_probs=with_log_probs)
    if name == "ref_model":
        return RefModelNode(models)
    if name == "grpo":
        return GRPONode(norm_by_std=algorithm.norm_adv_by_std)
    if name == "gdpo":
        return GDPONode()
    if name == "gae":
        return GAENode(models, gamma=algorithm.gamma, lam=algorithm.lam)
    return UpdateNode(models, cfg, with_critic=critic, old_log_probs=with_log_probs)


def _own(item: Any, stage: str, folder: Path, plugin_nodes: Mapping[str, type]) -> Node:
    """A node of the user's or of a plugin's."""
    path = f"dataflow.{stage}.{_name(item)}"
    kwargs: dict[str, Any] = {}
    try:
        if isinstance(item, str):
            cls = plugin_nodes[item]
            if not issubclass(cls, Node):
                raise ConfigError(f"{cls.__name__} is no verl_core.dataflow.Node")
        else:
            kwargs = dict(item.init_kwargs)
            cls = load_class(item.node_class, Node, folder)  # type: ignore[type-abstract]
        node = build(cls, kwargs, (), folder)
    except ConfigError as error:
        raise error.with_location(path=path) from error
    node.name = _name(item)
    return node


def _name(item: Any) -> str:
    return item if isinstance(item, str) else str(item.name)


def _names(items: Iterable[Any]) -> list[str]:
    return [_name(item) for item in items]


def _custom(flow: Mapping[str, Sequence[Any]], mounts: Sequence[str]) -> bool:
    """Whether nodes that are not ours are in the flow: they may read ``old_log_probs``."""
    known = {*BUILT_IN, *mounts}
    return any(_name(item) not in known for items in flow.values() for item in items)


def _passes(cfg: RunConfig) -> int:
    """How often a step's rows are updated on; from the second time on the policy has moved."""
    return cfg.algorithm.epochs * cfg.algorithm.minibatches
