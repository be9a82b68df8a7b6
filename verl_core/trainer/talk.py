"""Talk to a trained model: ``python -m verl_core.trainer.talk runs/NAME/model``.

Each line is a question; with ``--prompts FILE.jsonl`` a data file's prompts are answered instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from verl_core.config.data import read_rows
from verl_core.hybrid.rollout.hf import HFRollout
from verl_core.trainer.encoding import decode_responses, encode_prompts
from verl_core.trainer.model_source import resolve_model
from verl_core.trainer.models import context_length, load_policy, load_tokenizer, stop_ids
from verl_reward_sdk import VerlRewardError


class Chat:
    """A model that answers single prompts.

    Args:
        path: the model's folder, or a name that `resolve_model` knows.
        temperature: 0 takes the likeliest token each time.
    """

    def __init__(self, path: str, *, max_new_tokens: int, temperature: float) -> None:
        source = resolve_model(path)
        self.tokenizer = load_tokenizer(source)
        model = load_policy(source, torch.float32, seed=0)
        self.context = context_length(model)
        self.max_new_tokens, self.temperature = max_new_tokens, temperature
        self.rollout = HFRollout(
            model, stop_ids=stop_ids(model, self.tokenizer), pad_id=self.tokenizer.pad_token_id
        )

    def answer(self, prompt: Any, seed: int = 0) -> str:
        """The model's answer to a text or a list of messages."""
        ids = encode_prompts(
            self.tokenizer,
            [prompt],
            max_prompt_tokens=self.context or 4096,
            context=self.context,
            max_new_tokens=self.max_new_tokens,
        )
        rollout = self.rollout.generate(
            ids, 1, seed=seed, max_new_tokens=self.max_new_tokens, temperature=self.temperature
        )
        return decode_responses(self.tokenizer, rollout.response_ids)[0][0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer lines of standard input until it ends."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_core.trainer.talk",
        description="Talk to a trained model; each line of standard input is a question.",
    )
    parser.add_argument("model", help="folder of the model, such as runs/NAME/model")
    parser.add_argument("--prompts", type=Path, help="answer the prompts of this JSONL file")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token")
    options = parser.parse_args(arguments)
    try:
        chat = Chat(
            options.model,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
        )
        for number, (shown, prompt) in enumerate(_prompts(options.prompts)):
            if shown:
                print(f"> {shown}")  # noqa: T201
            print(chat.answer(prompt, seed=number) + "\n", flush=True)  # noqa: T201
    except VerlRewardError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _prompts(path: Path | None) -> Iterator[tuple[str, Any]]:
    """``(text to show, prompt)`` of the file, or of standard input."""
    if path is not None:
        for row in read_rows(path):
            last = row.prompt if isinstance(row.prompt, str) else row.prompt[-1]["content"]
            yield str(last), row.prompt
        return
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            print("> ", end="", flush=True)  # noqa: T201
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield "", line.strip()


if __name__ == "__main__":
    sys.exit(main())
