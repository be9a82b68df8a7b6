"""Tokens a second of a real training step's rollout, scoring and update, and the share of each.

Beside it a plain peer (`plain_step.py`): transformers' `generate` and a padded forward and backward
pass, on the same prompts, response lengths, micro-batch rows, types and threads, in this process
and step by step in turn with ours, so that a machine that slows down slows both.

    python benchmarks/train_step.py [--json] [--steps N] [--no-peer] [--model NAME]
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from contextlib import redirect_stdout
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from figures import Figure, show, warn_if_busy

from verl_core.cli.errors import run as with_messages
from verl_core.config import RunConfig, load_run_config
from verl_core.dataflow import StepBatch
from verl_core.trainer.model_source import resolve_model
from verl_core.trainer.models import dtype_of
from verl_core.trainer.run import Run
from verl_core.trainer.setup import Session
from verl_core.trainer.train import train_step

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "customer-service" / "run.yaml"
PARTS = ("rollout", "scoring", "update", "other")


@dataclass
class Seconds:
    """What the measured steps took, part by part, and how many response tokens they had."""

    tokens: int = 0
    ours: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    peer: dict[str, float] = field(default_factory=lambda: defaultdict(float))


class WatchedRun(Run):
    """A run that keeps its last batch, so that the peer can be given the same rows."""

    last: StepBatch

    def keep_samples(self, batch: StepBatch) -> None:
        """Keep `batch`."""
        self.last = batch
        super().keep_samples(batch)


def main(
    config: Annotated[
        Path, typer.Argument(metavar="[RUN.YAML]", help="The run whose steps are measured.")
    ] = EXAMPLE,
    steps: Annotated[
        int, typer.Option(min=1, help="Steps that are measured, after one that warms up.")
    ] = 2,
    model: Annotated[
        str | None, typer.Option(help="A folder or hub id in place of the config's model.")
    ] = None,
    peer: Annotated[bool, typer.Option("--peer/--no-peer", help="Run the plain peer too.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure training steps: tokens a second of rollout, scoring and update, share of each.

    The first step warms up and is not counted. The customer-service example on SmolLM2-135M takes
    a minute or two on two cores, more than half of it for the peer.
    """
    with tempfile.TemporaryDirectory(prefix="train-step-") as folder, redirect_stdout(sys.stderr):
        warn_if_busy()
        cfg = load_run_config(config, _overrides(folder, steps, model))
        seconds = measure(cfg, steps, with_peer=peer)
    show(
        f"{steps} steps of {cfg.source.name} on {cfg.model.path}, "
        f"{seconds.tokens / steps:.0f} response tokens a step",
        make_figures(seconds),
        as_json=as_json,
        notes=_notes(peer),
    )


def measure(cfg: RunConfig, steps: int, *, with_peer: bool) -> Seconds:
    """Train ``steps + 1`` steps, each followed by the peer's on the same rows."""
    with Session(cfg, plain=True) as opened:
        given = {one.name: getattr(opened, one.name) for one in fields(Run) if one.init}
        run = WatchedRun(**given)
        plain = _plain(cfg, run) if with_peer else None
        warm, counted = Seconds(), Seconds()
        for step in range(1, steps + 2):
            into = warm if step == 1 else counted
            metrics = train_step(run, step)
            run.record(step, metrics)
            into.tokens += int(run.last["response_mask"].sum())
            for part, value in _parts(run, metrics).items():
                into.ours[part] += value
            if plain is not None:
                taken = plain.run(run.last["prompt_ids"], run.last["response_ids"])
                for part, value in taken.items():
                    into.peer[part] += value
    return counted


def _parts(run: Run, metrics: dict[str, float]) -> dict[str, float]:
    """Seconds of each of `PARTS`; together they are the step."""

    def of(stages: Any) -> float:
        return sum(metrics[f"timing_s/{stage.name}"] for stage in stages)

    update = [stage for stage in run.pipeline.learn if stage.name == "update"]
    parts = {
        "rollout": of(run.pipeline.rollout),
        "scoring": of(run.pipeline.reward),
        "update": of(update),
    }
    return parts | {"other": metrics["timing_s/step"] - sum(parts.values())}


def _plain(cfg: RunConfig, run: Run) -> Any:
    from plain_step import PlainStep

    return PlainStep(
        resolve_model(cfg.model.path, base_dir=cfg.base_dir).path,
        rollout_dtype=dtype_of(cfg.rollout.dtype),
        autocast=run.models.autocast,
        lr=cfg.optim.lr,
        micro_batch_rows=cfg.trainer.micro_batch_rows,
        batch_rows=cfg.rollout.batch_rows,
        pad_id=int(run.models.tokenizer.pad_token_id),
    )


def make_figures(seconds: Seconds) -> list[Figure]:
    """Tokens a second and shares of the step, of `PARTS` and the whole."""
    ours, peer = dict(seconds.ours), dict(seconds.peer)
    whole, peer_whole = sum(ours.values()), sum(peer.values())

    def rate(taken: float | None) -> float | None:
        return seconds.tokens / max(taken, 1e-9) if taken else None

    figures = [
        Figure(part, rate(ours[part]) or 0.0, rate(peer.get(part)), "tokens/s")
        for part in PARTS[:3]
    ]
    figures.append(Figure("step", rate(whole) or 0.0, rate(peer_whole), "tokens/s"))
    figures += [
        Figure(f"{part} share", 100 * ours[part] / whole, None, "% of the step") for part in PARTS
    ]
    return figures


def _overrides(folder: str, steps: int, model: str | None) -> list[str]:
    overrides = [
        "name=train-step",
        f"output={folder}",
        "server.enabled=false",
        "tracking.tensorboard=false",
        "data.eval=null",
        f"trainer.steps={steps + 1}",
    ]
    return overrides if model is None else [*overrides, f"model.path={model}"]


def _notes(peer: bool) -> list[str]:
    if not peer:
        return []
    return [
        "The peer: transformers' generate, padded forward and backward, AdamW; it scores nothing."
    ]


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    sys.exit(with_messages(lambda: app(prog_name="train_step.py")))
