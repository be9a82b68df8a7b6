"""Which mounts may score a step's responses while others of it are still generated.

Stages run in the order in which they are written, and streaming may not be seen to change that. So
a mount begins early only where nothing but the reference model and other mounts stands between it
and the actor: a node of somebody's own might change what is scored, or count on being asked first.
`RewardNode`s read tensors of the whole step, log-probabilities among them: they are never early.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from verl_core.dataflow import Graph
from verl_core.trainer.nodes.actor import ActorNode, RefModelNode
from verl_core.trainer.nodes.fuse import FuseNode
from verl_core.trainer.reward import ProviderNode


@dataclass(frozen=True)
class Early:
    """What begins early in a run.

    Args:
        mounts: their names.
        barrier: the node of somebody's own behind which mounts wait for their stage: the first
            between the actor and fusion, or one that chooses the actor's prompts. None where there
            is none.
    """

    mounts: frozenset[str]
    barrier: str | None


def early_mounts(graph: Graph, node_mounts: Collection[str]) -> Early:
    """Read it off the dataflow.

    Args:
        graph: of the run.
        node_mounts: mounts that are `RewardNode`s.
    """
    nodes = [node for stage in graph.stages for node in stage.nodes]
    mounts: set[str] = set()
    after_actor = False
    for place, node in enumerate(nodes):
        if isinstance(node, ActorNode):
            after_actor = True
        elif isinstance(node, FuseNode):
            break
        elif isinstance(node, ProviderNode):
            mounts.update(name for name in node.mounts if name not in node_mounts)
        elif isinstance(node, RefModelNode):
            continue
        elif after_actor or "rows" in node.writes:
            held_up = any(isinstance(later, ProviderNode) for later in nodes[place:])
            return Early(frozenset(mounts), node.name if held_up else None)
    return Early(frozenset(mounts), None)
