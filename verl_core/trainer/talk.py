"""Talk to a trained model: ``verl-reward talk runs/NAME/model``, or ``python -m`` this module.

Each line is a question; with ``--prompts FILE.jsonl`` a data file's prompts are answered instead.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from verl_core.config.data import DataRow, read_rows
from verl_core.trainer.near import near
from verl_core.trainer.run_folder import held_out_prompts
from verl_reward_sdk import ConfigError, VerlRewardError

LIMIT = 5
"""So many prompts of a file are answered where nobody says how many."""

NEW_TOKENS = 64
"""The longest answer, in tokens, where nobody says how long."""

EXAMPLES = """\
examples:
  # five prompts of a data file, each as the model was trained: system line, facts and all
  verl-reward talk runs/NAME/model --prompts data/heldout.jsonl
  # twenty of them, another answer than the likeliest
  verl-reward talk runs/NAME/model --prompts data/heldout.jsonl \\
      --limit 20 --temperature 1
  # your own questions, a line each, until Ctrl-D: bare ones, without a system line
  verl-reward talk runs/NAME/model
  # the same under a system line, which may hold facts too
  verl-reward talk runs/NAME/model \\
      --system "You work for a shop. The kettle has a two-year warranty."
"""


class Chat:
    """A model that answers single prompts.

    Args:
        path: the model's folder, or a name that `resolve_model` knows.
        temperature: 0 takes the likeliest token each time.
    """

    def __init__(self, path: str, *, max_new_tokens: int, temperature: float) -> None:
        # Here, since they import torch: `--help` and a wrong file name are told at once.
        import torch

        from verl_core.hybrid.rollout.hf import HFRollout
        from verl_core.trainer.model_source import resolve_model
        from verl_core.trainer.models import context_length, load_policy, load_tokenizer, stop_ids

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
        from verl_core.rewards.decoding import ResponseDecoder
        from verl_core.trainer.encoding import encode_prompts

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
        return ResponseDecoder(self.tokenizer).text(rollout.response_ids[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m verl_core.trainer.talk``; gives the exit code."""
    options = _parser().parse_args(arguments)
    try:
        talk(**vars(options))
    except VerlRewardError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def talk(
    model: str,
    *,
    prompts: Path | None = None,
    limit: int = LIMIT,
    prompt_key: str = "prompt",
    max_new_tokens: int = NEW_TOKENS,
    temperature: float = 0.0,
    system: str | None = None,
) -> None:
    """Answer lines of standard input until it ends, or prompts of a file.

    A terminal gets its lines wrapped at words; elsewhere they are as the model wrote them.

    Args:
        model: the model's folder, or a name that `resolve_model` knows.
        prompts: a JSON-lines file, whose first `limit` rows are answered (0: all of them).
        prompt_key: the file's column that holds the prompt.
        max_new_tokens: the longest answer, in tokens.
        temperature: 0 takes the likeliest token each time.
        system: the system message of each line; prompts of a file have their own.

    Raises:
        VerlRewardError: the model or the file cannot be used.
        KeyboardInterrupt: at Ctrl-C; the terminal's next line is the shell's.
    """
    if prompts is not None and system is not None:
        raise ConfigError("--system goes with lines that are typed; a file's prompts have theirs")
    rows = None if prompts is None else _rows(prompts, prompt_key, limit)
    interactive = rows is None and sys.stdin.isatty()
    try:
        if interactive and system is None:
            _say(how_trained(Path(model)))
        chat = Chat(model, max_new_tokens=max_new_tokens, temperature=temperature)
        asked = _lines(interactive, system) if rows is None else _prompts(rows)
        for number, (shown, prompt) in enumerate(asked):
            if shown:
                _say(shown, mark="> ")
            _say(chat.answer(prompt, seed=number) + "\n")
    except KeyboardInterrupt:
        if sys.stderr.isatty():  # behind the ^C that the terminal shows
            print(file=sys.stderr)  # noqa: T201
        raise


def _say(text: str, mark: str = "") -> None:
    """Print `text` with `mark` before each of its lines, those of a terminal included."""
    lines = text.split("\n")
    if sys.stdout.isatty():
        room = max(Console(file=sys.stdout).width - len(mark), 1)
        lines = [part for line in lines for part in _wrapped(line, room)]
    print("\n".join((mark + line).rstrip(" ") if mark else line for line in lines), flush=True)  # noqa: T201


def _wrapped(line: str, room: int) -> list[str]:
    """`line` in parts of at most `room` columns, broken at words; a longer word is broken too."""
    console = Console(file=io.StringIO(), width=room)
    return [part.plain.rstrip(" ") for part in Text(line).wrap(console, room)] or [""]


def how_trained(model: Path) -> str:
    """A line for those who ask freely: what the prompts had that a bare question has not.

    Args:
        model: the model's folder; a run's lies in the run's folder, whose config names the prompts.
    """
    file, key = held_out_prompts(model.resolve().parent)
    if file is None:
        return (
            "A line is one bare question. A model trained on prompts with a system line answers"
            " them better: --system TEXT, or --prompts FILE.jsonl"
        )
    again = f"--prompts {near(file)}" + ("" if key == "prompt" else f" --prompt-key {key}")
    prompt = read_rows(file, prompt_key=key)[0].prompt
    if isinstance(prompt, str):
        return f"A line is one question, as in training. To answer held-out prompts: {again}"
    roles = " + ".join(str(message["role"]) for message in prompt)
    return (
        f"It was trained on prompts of {roles} messages; a line here is a bare question, which"
        f" differs, unless --system TEXT gives it a system line. To ask as in training: {again}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verl_core.trainer.talk",
        description="Talk to a trained model: each line of standard input is a question, or, with\n"
        "--prompts, the prompts of a data file are.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="folder of the model, such as runs/NAME/model")
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="answer the prompts of this JSONL file"
    )
    parser.add_argument(
        "--limit",
        type=_count,
        default=LIMIT,
        metavar="N",
        help=f"answer the first N prompts of the file (default {LIMIT}; 0: all)",
    )
    parser.add_argument(
        "--prompt-key", default="prompt", metavar="KEY", help="column of the prompts"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=NEW_TOKENS,
        metavar="N",
        help=f"longest answer (default {NEW_TOKENS})",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0, the default: likeliest token",
    )
    parser.add_argument(
        "--system", metavar="TEXT", help="ask each line under this system line, facts and all"
    )
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {number}")
    return number


def _rows(prompts: Path, prompt_key: str, limit: int) -> Sequence[DataRow]:
    return list(islice(read_rows(prompts, prompt_key=prompt_key), limit or None))


def _prompts(rows: Sequence[DataRow]) -> Iterator[tuple[str, Any]]:
    """``(text to show, prompt)`` of each row."""
    for row in rows:
        last = row.prompt if isinstance(row.prompt, str) else row.prompt[-1]["content"]
        yield str(last), row.prompt


def _lines(interactive: bool, system: str | None) -> Iterator[tuple[str, Any]]:
    """``("", question)`` of each line of standard input, under the `system` line if there is one.

    The empty text: what was typed is shown already.
    """
    while True:
        if interactive:
            print("> ", end="", flush=True)  # noqa: T201
        line = sys.stdin.readline()
        if not line:
            if interactive:  # behind the mark that waits for a question
                print()  # noqa: T201
            return
        if question := line.strip():
            messages = [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ]
            yield "", question if system is None else messages


if __name__ == "__main__":
    sys.exit(main())
