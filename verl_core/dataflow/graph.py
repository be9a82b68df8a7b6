"""Stages of nodes, checked before anything is loaded and run in the order in which they stand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verl_core.dataflow.batch import StepBatch
from verl_core.dataflow.node import Node
from verl_reward_sdk import ConfigError, did_you_mean


@dataclass(frozen=True)
class Stage:
    """Nodes that run one after another, timed together as ``timing_s/<name>``.

    `note` says where a stage stands that no config writes.
    """

    name: str
    nodes: tuple[Node, ...]
    note: str = ""


class Graph:
    """An ordered list of stages.

    Args:
        stages: in the order in which they run.
        inputs: columns that are there before the first stage.

    Raises:
        ConfigError: a node reads a column that nothing before it writes; it names the node, its
            stage, the column, and the nearest column or the node that writes it too late.
    """

    def __init__(self, stages: Sequence[Stage], inputs: Iterable[str]) -> None:
        self.stages = tuple(stages)
        self.inputs = frozenset(inputs)
        self._check()

    def _check(self) -> None:
        known = set(self.inputs)
        for stage in self.stages:
            for node in stage.nodes:
                for column in sorted(node.reads - known):
                    raise ConfigError(
                        f"node {node.name!r} reads the column {column!r}, "
                        "which no node before it writes",
                        path=f"dataflow.{stage.name}",
                        hint=self._advice(node, column, known),
                    )
                known |= node.writes

    def _advice(self, reader: Node, column: str, known: set[str]) -> str:
        for stage in self.stages:
            for node in stage.nodes:
                if column in node.writes and node is not reader:
                    where = f"{stage.name!r} ({stage.note})" if stage.note else repr(stage.name)
                    return f"{node.name!r} in stage {where} writes it: move {reader.name!r} behind"
        if column == "ref_log_prob":
            return "add ref_model to the rollout stage"
        return did_you_mean(column, known)

    def reads(self, column: str) -> bool:
        """Whether any node reads `column`: what nobody reads need not be computed."""
        return any(column in node.reads for stage in self.stages for node in stage.nodes)

    def run_stage(self, stage: Stage, batch: StepBatch) -> None:
        """Run one stage's nodes on `batch`, and note the seconds it took.

        Raises:
            RuntimeError: a node did not write exactly what it declares.
        """
        start = time.perf_counter()
        for node in stage.nodes:
            written = node.run(batch)
            if set(written) != node.writes:
                raise RuntimeError(
                    f"node {node.name!r} declares writes={sorted(node.writes)} "
                    f"but returned {sorted(written)}"
                )
            batch.write(written)
        batch.metrics[f"timing_s/{stage.name}"] = time.perf_counter() - start
