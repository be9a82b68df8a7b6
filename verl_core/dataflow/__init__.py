"""The RL dataflow: nodes that read and write named columns, composed into a graph of stages."""

from verl_core.dataflow.batch import StepBatch
from verl_core.dataflow.graph import Graph, Stage
from verl_core.dataflow.node import Node

__all__ = ["Graph", "Node", "Stage", "StepBatch"]
