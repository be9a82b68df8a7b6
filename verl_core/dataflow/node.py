"""One operation of the dataflow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from verl_core.dataflow.batch import StepBatch


class Node(ABC):
    """An operation that reads some columns of a step's batch and writes others.

    A node of your own is mounted in any stage of ``dataflow:`` as ``{name, node_class,
    init_kwargs}``. It declares what it reads and writes, so that a graph that cannot work is
    refused before a model is loaded.
    """

    #: Columns that must have been written before this node runs.
    reads: ClassVar[frozenset[str]] = frozenset()
    #: Columns that it writes; exactly these are what `run` returns.
    writes: ClassVar[frozenset[str]] = frozenset()

    name: str = ""

    @abstractmethod
    def run(self, batch: StepBatch) -> Mapping[str, Any]:
        """The columns it writes. It may add to ``batch.metrics``; it never changes a column."""
