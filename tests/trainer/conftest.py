"""What every test of the trainer wants."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest


def flow(**stages: list[Any]) -> dict[str, list[Any]]:
    """The tiny run's ``dataflow:`` with GRPO, but for the stages that are given."""
    usual = {
        "rollout": ["actor"],
        "reward": ["style", "overlap"],
        "safety": ["guard"],
        "advantage": ["grpo"],
        "update": ["ppo"],
    }
    return usual | stages


def ends_in_step(run: Any, source: str, **init_kwargs: Any) -> None:
    """Put the node `Ends` of this source, made with these arguments, behind the advantages of a
    `TinyRun`."""
    (run.folder / "ending_node.py").write_text(source, "utf-8")
    node = {"name": "ends", "node_class": "ending_node.Ends", "init_kwargs": init_kwargs}
    run.config["dataflow"] = flow(advantage=["grpo", node])
    run.config["algorithm"] = {"kl_coef": 0}


def state_of(folder: Path) -> dict[str, Any]:
    """What a run's ``state.json`` says."""
    state: dict[str, Any] = json.loads((folder / "state.json").read_text("utf-8"))
    return state


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """The tiny model is faster on one thread, and two processes do not fight for two cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def tiny_models(tiny_run: Any) -> Callable[..., Any]:
    """``tiny_models("algorithm.kl_coef=0.1", …)``: the models of the tiny run's config, all of them
    loaded from the tiny model: policy, rollout, reference and critic."""
    from verl_core.config import load_run_config
    from verl_core.trainer.model_set import ModelSet
    from verl_core.trainer.model_source import resolve_model

    def load(*overrides: str) -> ModelSet:
        cfg = load_run_config(tiny_run.write(), overrides)
        models = ModelSet(cfg)
        source = resolve_model(cfg.model.path)
        models.load(source, critic=source, reference=source)
        return models

    return load


@pytest.fixture
def tiny_step() -> Callable[..., Any]:
    """``tiny_step(models, ["ab", "c", …], n=2)``: the batch of a step in which the policy gave
    these responses, `n` a prompt, each with its end token."""
    import numpy as np

    from verl_core.dataflow import StepBatch
    from verl_core.trainer.encoding import encode_prompts
    from verl_core.trainer.nodes.actor import lay_out, row_names
    from verl_core.trainer.prompts import PromptRow

    def step(models: Any, texts: Sequence[str], n: int, **columns: Sequence[Any]) -> StepBatch:
        count = len(texts) // n
        prompts = [f"Question {place}?" for place in range(count)]
        ids = encode_prompts(models.tokenizer, prompts, 400)
        rows = [
            PromptRow(str(i), prompts[i], ids[i], {name: v[i] for name, v in columns.items()})
            for i in range(count)
        ]
        end = models.tokenizer.eos_token_id
        responses = [np.array([*models.tokenizer(text)["input_ids"], end]) for text in texts]
        reasons = ["stop"] * len(texts)
        return StepBatch(
            1, lay_out(rows, n, responses, reasons, row_names(1, count, n), models.tokenizer)
        )

    return step
