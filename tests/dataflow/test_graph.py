"""The graph: what cannot work is refused before anything runs, and says where."""

from __future__ import annotations

import pytest

from verl_core.dataflow import Graph, Node, Stage, StepBatch
from verl_reward_sdk import ConfigError


class Adds(Node):
    """Adds one to a column."""

    def __init__(self, name: str, reads: str, writes: str) -> None:
        self.name = name
        self.reads = frozenset({reads})
        self.writes = frozenset({writes})
        self._from, self._to = reads, writes

    def run(self, batch):
        return {self._to: batch[self._from] + 1}


class Liar(Adds):
    """Declares one column and writes another."""

    def run(self, batch):
        return {"something_else": 1}


def test_columns_flow_through_the_stages_in_order():
    first, second = Adds("a", "rows", "x"), Adds("b", "x", "y")
    graph = Graph([Stage("one", (first,)), Stage("two", (second,))], inputs={"rows"})
    batch = StepBatch(1, {"rows": 0})
    for stage in graph.stages:
        graph.run_stage(stage, batch)
    assert batch["y"] == 2
    assert set(batch.metrics) == {"timing_s/one", "timing_s/two"}


def test_a_missing_column_names_node_stage_column_and_the_nearest():
    stages = [Stage("rollout", (Adds("a", "rows", "responses"),))]
    stages.append(Stage("reward", (Adds("scorer", "response", "r"),)))
    with pytest.raises(ConfigError) as caught:
        Graph(stages, inputs={"rows"})
    text = str(caught.value)
    assert "'scorer'" in text
    assert "'response'" in text
    assert "did you mean 'responses'?" in text
    assert caught.value.path == "dataflow.reward"


def test_a_column_written_too_late_says_which_node_to_move():
    stages = [
        Stage("advantage", (Adds("grpo", "rewards", "advantages"),)),
        Stage("reward", (Adds("fuse", "rows", "rewards"),)),
    ]
    with pytest.raises(ConfigError, match="'fuse' in stage 'reward' writes it: move 'grpo' behind"):
        Graph(stages, inputs={"rows"})


def test_a_missing_reference_model_is_named():
    with pytest.raises(ConfigError, match="add ref_model to the rollout stage"):
        Graph([Stage("update", (Adds("ppo", "ref_log_prob", "x"),))], inputs={"rows"})


def test_a_node_that_does_not_write_what_it_declares_is_caught():
    graph = Graph([Stage("one", (Liar("liar", "rows", "x"),))], inputs={"rows"})
    with pytest.raises(RuntimeError, match="liar"):
        graph.run_stage(graph.stages[0], StepBatch(1, {"rows": 0}))


def test_it_knows_which_columns_somebody_reads():
    graph = Graph([Stage("one", (Adds("a", "rows", "x"),))], inputs={"rows"})
    assert graph.reads("rows")
    assert not graph.reads("old_log_probs")
