"""What the engine costs: alone, and from token ids to the fused reward beside TRL's own path.

Every mount scores by the length of the response, which takes no time. Our path decodes as our
trainer does (`ResponseDecoder`: texts without, and with, special tokens). TRL's path is its own
`GRPOTrainer._calculate_rewards` with as many such functions, behind the `batch_decode` that TRL
calls; it needs an environment with TRL (constraints/trl.txt), and is left out elsewhere. For verl:
verl_loop.py.

    python benchmarks/engine_overhead.py [--json] [--rows N] [--mounts M] [--model NAME]
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from figures import Figure, show, warn_if_busy
from length_plugin import install, token_ids, write_run
from turns import in_turns

from verl_core.cli.errors import run as with_messages
from verl_core.integrations.trl import reward_functions
from verl_core.rewards import RewardEngine
from verl_core.rewards.decoding import ResponseDecoder
from verl_reward_sdk import RewardBatch

#: Microseconds a row and mount; our path over TRL's.
ENGINE_TARGET, PATH_TARGET = 1.0, 1.0


def main(
    rows: Annotated[int, typer.Option(min=1, help="Responses.")] = 1024,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 64,
    mounts: Annotated[list[int] | None, typer.Option(min=1, help="How many mounts.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is measured.")] = 15,
    model: Annotated[
        str, typer.Option(help="A folder or hub id whose tokenizer decodes.")
    ] = "HuggingFaceTB/SmolLM2-135M-Instruct",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure the engine's overhead: the median of microseconds, by default with 1 and 4 mounts."""
    import torch

    torch.set_num_threads(1)
    has_peer = importlib.util.find_spec("trl") is not None
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder, redirect_stdout(sys.stderr):
        warn_if_busy()
        decode = _decoder(model, rows, tokens)
        install(Path(folder))
        for count in mounts or [1, 4]:
            figures += Bench(Path(folder), decode, rows, count).measure(repeats, has_peer=has_peer)
    show(
        f"{rows} responses of {tokens} tokens, the median of {repeats} times that each was measured"
        " in turn",
        figures,
        as_json=as_json,
        notes=["The peer: TRL's GRPOTrainer._calculate_rewards behind its own batch_decode."]
        if has_peer
        else ["TRL is not installed here: no peer."],
    )


class Decoder:
    """The token ids, and how they become texts in TRL and in our trainer."""

    def __init__(self, tokenizer: Any, ids: list[list[int]]) -> None:
        self.tokenizer, self.ids = tokenizer, ids
        self._ours = ResponseDecoder(tokenizer)

    def trl(self) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(self.ids, skip_special_tokens=True)
        return texts

    def ours(self) -> tuple[list[str], list[str]]:
        """``(responses, responses_raw)``."""
        return self._ours.both(self.ids)


class Bench:
    """The same rows on several ways.

    Args:
        folder: where the YAML is written.
        decode: the token ids' texts.
        rows: how many there are.
        mounts: of ours, and functions of TRL.
    """

    def __init__(self, folder: Path, decode: Decoder, rows: int, mounts: int) -> None:
        self.rows, self.mounts, self.decode = rows, mounts, decode
        path = folder / f"run-{mounts}.yaml"
        write_run(path, mounts)
        self.rewards = reward_functions(path)
        self.engine = RewardEngine.from_config(self.rewards.reward_funcs[0].scorer.plan.sets.train)
        self.engine.setup()
        self.batch = self.batch_of(*decode.ours())

    def batch_of(self, texts: list[str], raw: list[str]) -> RewardBatch:
        """The rows as our trainer hands them to the engine."""
        return RewardBatch(
            sample_ids=[str(row) for row in range(self.rows)],
            prompts=[""] * self.rows,
            responses=texts,
            responses_raw=raw,
            training=True,
        )

    def measure(self, repeats: int, *, has_peer: bool) -> list[Figure]:
        """The engine alone, and the whole way."""
        ways: dict[str, Callable[[], object]] = {
            "engine": lambda: self.engine.score(self.batch),
            "path": self.path,
        }
        if has_peer:
            trl = TrlPath(self.rows, self.decode)
            own = [_length] * self.mounts
            self._check(trl.rewards(own), trl.rewards(self.rewards.reward_funcs))
            ways["trl"] = lambda: trl.rewards(own)
            ways["inside"] = lambda: trl.rewards(self.rewards.reward_funcs)
        us = {name: taken / self.rows * 1e6 for name, taken in in_turns(ways, repeats).items()}
        peer = us.get("trl")
        name = f"{self.mounts} mount{'s' if self.mounts > 1 else ''}"
        figures = [
            Figure(
                f"engine alone, {name}",
                us["engine"] / self.mounts,
                None,
                "µs a row and mount",
                ENGINE_TARGET,
                higher_is_better=False,
            ),
            Figure(
                f"token ids to fused reward, {name}",
                us["path"],
                peer,
                "µs a row",
                PATH_TARGET if has_peer else None,
                higher_is_better=False,
            ),
        ]
        if has_peer:
            inside = Figure(f"inside TRL, fused, {name}", us["inside"], peer, "µs a row")
            figures.append(inside)
        self.engine.close()
        self.rewards.close()
        return figures

    def path(self) -> list[float]:
        """From token ids to the fused reward."""
        fused: list[float] = self.engine.score(self.batch_of(*self.decode.ours())).fused.tolist()
        return fused

    def _check(self, own: Any, ours: Any) -> None:
        """All ways give the same numbers."""
        found = self.path()
        if not found == own.sum(dim=1).tolist() == ours.sum(dim=1).tolist():
            raise SystemExit("the ways do not give the same rewards")


class TrlPath:
    """TRL's own path from token ids to the rewards of its functions, without its model."""

    def __init__(self, rows: int, decode: Decoder) -> None:
        from accelerate import PartialState
        from trl import GRPOTrainer

        PartialState(cpu=True)
        self.calculate = GRPOTrainer._calculate_rewards
        self.decode = decode
        self.inputs = [{"prompt": [{"role": "user", "content": "Why?"}]} for _ in range(rows)]

    def rewards(self, functions: list[Any]) -> Any:
        """(B, functions) float32."""
        import torch

        trainer = SimpleNamespace(
            accelerator=SimpleNamespace(device=torch.device("cpu"), is_main_process=True),
            reward_funcs=functions,
            reward_processing_classes=[None] * len(functions),
            reward_func_names=["length"] * len(functions),
            state=SimpleNamespace(global_step=0),
            environments=None,
            _log_completion_extra=lambda column, values: None,
            _log_metric=lambda name, value: None,
            args=SimpleNamespace(report_to=[]),
            model=SimpleNamespace(training=True),
            _metrics=defaultdict(lambda: defaultdict(list)),
        )
        completions = [[{"role": "assistant", "content": text}] for text in self.decode.trl()]
        prompts = [row["prompt"] for row in self.inputs]
        return self.calculate(trainer, self.inputs, prompts, completions, self.decode.ids)


def _length(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    return [float(len(turns[0]["content"])) for turns in completions]


def _decoder(model: str, rows: int, tokens: int) -> Decoder:
    from transformers import AutoTokenizer

    from verl_core.trainer.model_source import resolve_model

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(model).path)
    return Decoder(tokenizer, token_ids(tokenizer, rows, tokens))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    sys.exit(with_messages(lambda: app(prog_name="engine_overhead.py")))
