"""Score held-out answers in verl's own reward loop: Ray workers with our manager, and no GPU.

python examples/verl/try_rewards.py [--rows N] [--model NAME]
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np

from verl_core.trainer.model_source import resolve_model
from verl_reward_sdk import ConfigError

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4, help="so many of val.jsonl")
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    arguments = parser.parse_args()
    try:
        model = str(resolve_model(arguments.model, say=print).path)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    if not (HERE / "val.jsonl").is_file():
        sys.exit(f"error: val.jsonl is missing: python {HERE / 'make_data.py'} writes it")
    lines = (HERE / "val.jsonl").read_text("utf-8").splitlines()[: arguments.rows]
    rows = [json.loads(line) for line in lines]
    # What the shop would say, and what says nothing, in turn.
    answers = [said for row in rows for said in (row["reward_model"]["ground_truth"], "Hm.")]
    print("Waiting for verl's reward workers: Ray starts them, and each loads verl…", flush=True)
    show(answers, score(model, rows, answers))


def score(model: str, rows: list[dict[str, Any]], answers: list[str]) -> Any:
    """What verl's `RewardLoopManager` gives for two answers a row: a `DataProto`."""
    import ray
    import verl
    from hydra import compose, initialize_config_dir
    from verl.experimental.reward_loop import RewardLoopManager

    overrides = [
        f"actor_rollout_ref.model.path={model}",
        "reward.num_workers=2",
        "reward.reward_manager.source=importlib",
        "reward.reward_manager.module.path=pkg://verl_core.integrations.verl",
        "reward.reward_manager.name=VerlRewardManager",
        f"+reward.reward_kwargs.verl_reward.config={HERE / 'run.yaml'}",
    ]
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR)
    try:
        return RewardLoopManager(config).compute_rm_score(batch(model, rows, answers))
    finally:
        ray.shutdown()


def batch(model: str, rows: list[dict[str, Any]], answers: list[str]) -> Any:
    """The rows as verl's rollout hands them over: responses padded on the right, columns as arrays
    of objects."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from verl import DataProto
    from verl.utils import hf_tokenizer

    tokenizer = hf_tokenizer(model)
    ids = [torch.tensor([*tokenizer(text).input_ids, tokenizer.eos_token_id]) for text in answers]
    responses = pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id)
    prompts = torch.full((len(ids), 1), tokenizer.eos_token_id)
    mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    columns = {
        "raw_prompt": [row["prompt"] for row in rows for _ in range(2)],
        "uid": [str(number // 2) for number in range(len(ids))],
        "global_steps": [1] * len(ids),
    }
    for name in ("data_source", "reward_model", "extra_info"):
        columns[name] = [row[name] for row in rows for _ in range(2)]
    arrays = {name: np.empty(len(ids), dtype=object) for name in columns}
    for name, values in columns.items():
        arrays[name][:] = values
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "attention_mask": torch.cat([torch.ones_like(prompts), mask], 1),
            "input_ids": torch.cat([prompts, responses], 1),
        },
        non_tensors=arrays,
    )


def show(answers: list[str], scored: Any) -> None:
    names = scored.meta_info["reward_extra_keys"]
    print("  ".join(name.rjust(max(6, len(name))) for name in names), " answer")
    for number, answer in enumerate(answers):
        values = [scored.non_tensor_batch[name][number] for name in names]
        cells = [f"{v:.3f}".rjust(max(6, len(n))) for n, v in zip(names, values, strict=True)]
        print("  ".join(cells), f" {answer:.50}")


if __name__ == "__main__":
    main()
