"""Train with TRL's GRPOTrainer by the rewards of run.yaml.

python examples/trl/train.py [--model NAME] [--steps N] [--weights FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

from verl_core.integrations.trl import reward_functions
from verl_core.trainer.model_source import resolve_model
from verl_reward_sdk import ConfigError

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "customer-service" / "prompts.jsonl"


def main() -> None:
    """Train, and print where the model is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--generations", type=int, default=8, help="responses a prompt")
    parser.add_argument("--tokens", type=int, default=48, help="at most, a response")
    parser.add_argument("--output", default="runs/trl")
    parser.add_argument("--weights", help="a weights.db: weights that may be changed meanwhile")
    given = parser.parse_args()
    try:
        model = str(resolve_model(given.model, say=print).path)
    except ConfigError as error:
        sys.exit(f"error: {error}")

    args = GRPOConfig(
        output_dir=given.output,
        per_device_train_batch_size=given.generations * 2,
        num_generations=given.generations,
        max_completion_length=given.tokens,
        temperature=0.8,
        learning_rate=2e-5,
        max_steps=given.steps,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
    )
    rewards = reward_functions(HERE / "run.yaml", args=args, weights=given.weights)
    trainer = GRPOTrainer(
        model=model,
        args=args,
        reward_funcs=rewards.reward_funcs,
        train_dataset=load_dataset("json", data_files=str(DATA), split="train"),
    )
    trainer.train()
    trainer.save_model(given.output)
    rewards.close()
    print(f"The model is in {given.output}.")


if __name__ == "__main__":
    main()
