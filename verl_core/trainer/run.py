"""What a training run works with, once everything is in its place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from verl_core.config import RunConfig
from verl_core.control.server import ControlServer
from verl_core.dataflow import StepBatch
from verl_core.rewards import Lease, StreamedScoring
from verl_core.rewards.engine import RewardEngine
from verl_core.trainer import series
from verl_core.trainer.display import Display
from verl_core.trainer.early import Early, early_mounts
from verl_core.trainer.evaluate import Evaluator, prompt_text
from verl_core.trainer.memory import peak_rss_gb
from verl_core.trainer.model_set import ModelSet
from verl_core.trainer.pipeline import Pipeline
from verl_core.trainer.prompts import PromptOrder, PromptRow
from verl_core.trainer.reward import TensorShelf
from verl_core.trainer.run_folder import RunFolder
from verl_core.trainer.state_file import now
from verl_core.trainer.tracking import Tracker


@dataclass
class WholeStep:
    """The step that models and rewards stand at: what a checkpoint may be made of.

    Args:
        step: the last trained one; None from the moment an optimiser moves a weight to the end of
            that step.
    """

    step: int | None

    def broken(self, *_: Any) -> None:
        """A step's update begins (`torch.optim.Optimizer.register_step_pre_hook` calls it)."""
        self.step = None


@dataclass
class Run:
    """A run's parts; `verl_core.trainer.train` says what is done with them.

    Args:
        first_step: 1, or the step after the checkpoint that it goes on from.
        rows: the training prompts, tokenised.
        evaluator: None where there are no held-out prompts.
        shelf: None where no mount is a `RewardNode`.
        status: what ``/healthz`` shows.
        server: the control plane, or None where it is switched off.
        whole: what a checkpoint may be made of now.
    """

    cfg: RunConfig
    folder: RunFolder
    first_step: int
    engine: RewardEngine
    models: ModelSet
    pipeline: Pipeline
    rows: Sequence[PromptRow]
    order: PromptOrder
    evaluator: Evaluator | None
    shelf: TensorShelf | None
    tracker: Tracker
    display: Display
    status: dict[str, Any]
    server: ControlServer | None
    whole: WholeStep = field(init=False)
    _generations: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = WholeStep(self.first_step - 1)
        for name in ("optimizer", "critic_optimizer"):
            if hasattr(self.models, name):
                getattr(self.models, name).register_step_pre_hook(self.whole.broken)

    def prompts_of(self, step: int) -> list[PromptRow]:
        """The P prompts of a step."""
        return [self.rows[index] for index in self.order.of_step(step)]

    @cached_property
    def early(self) -> Early:
        """Mounts that may score responses before the last of a step is generated."""
        node_mounts = {mount.name for mount in self.cfg.reward if mount.node_class is not None}
        return early_mounts(self.pipeline.graph, node_mounts)

    @property
    def streams(self) -> bool:
        """Whether responses are handed on as they end."""
        return self.cfg.rollout.stream and bool(self.early.mounts)

    def note_generations(self, lease: Lease) -> None:
        """Write down and tell which mounts run another generation than in the step before."""
        assert lease.step is not None  # a step's own
        for name, number in lease.generations.items():
            before = self._generations.get(name)
            if before == number:
                continue
            self._generations[name] = number
            shown = self.engine.generation(name, lease)
            self.tracker.generation(lease.step, name, shown)
            if before is not None:
                files = ", ".join(shown["digests"]) or "its worker"
                self.display.say(
                    f"step {lease.step}: {name} runs generation {number} from here on ({files})"
                )

    def open_scoring(
        self, sample_ids: Sequence[str], group_ids: Sequence[Hashable] | None, lease: Lease
    ) -> StreamedScoring:
        """A step's scoring, whose rows may come one by one. What is scored together follows from
        their order alone."""
        return self.engine.stream(
            sample_ids,
            group_ids,
            lease=lease,
            slice_groups=self.cfg.rollout.slice_prompts,
            early=self.early.mounts,
        )

    @staticmethod
    def due(step: int, every: int) -> bool:
        """Whether something that happens every `every` steps (0: never) happens after `step`."""
        return every > 0 and step % every == 0

    def record(self, step: int, metrics: dict[str, float]) -> None:
        """Write down and show what a step came to."""
        self.tracker.log(step, {"time": now(), **metrics})
        self.display.step(step, metrics)
        self.folder.note(step=step, peak_rss_gb=metrics["perf/peak_rss_gb"])
        self.status["step"] = step

    def keep_samples(self, batch: StepBatch) -> None:
        """Write a few of the step's responses, with their scores explained."""
        table = batch["table"]
        references = batch["columns"].get(self.cfg.data.reference_key)
        self.tracker.samples(
            batch.step,
            [
                {
                    "sample_id": batch["sample_ids"][i],
                    "group_id": batch["group_ids"][i],
                    "prompt": prompt_text(batch["prompts"][i]),
                    "response": batch["responses"][i],
                    "reference": references[i] if references else None,
                    "fused": float(table.fused[i]) if np.isfinite(table.fused[i]) else None,
                    "explain": table.explain(i),
                }
                for i in self.tracker.choose(table.fused.tolist())
            ],
        )

    def with_throughput(self, batch: StepBatch) -> dict[str, float]:
        """The step's figures, with response tokens a second and the peak of memory.

        The update's speed is that of the tokens it trained on: none where no row had a gradient.
        """
        metrics = batch.metrics
        tokens = float(batch["response_mask"].sum())
        if trained := metrics.get(series.TRAINED_TOKENS):
            metrics[series.UPDATE_SPEED] = trained / max(metrics["timing_s/update"], 1e-9)
        metrics["perf/tokens_per_s"] = tokens / max(metrics["timing_s/step"], 1e-9)
        metrics["perf/peak_rss_gb"] = peak_rss_gb()
        return metrics
