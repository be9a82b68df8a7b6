"""From token ids to the reward: our engine, verl's reward loop, and our manager inside that loop.

All three score the same rows by the length of the response, which takes no time, so that what is
measured is the way there: decoding, batches, calls, fusion. verl's side is its own
`RewardLoopWorker`, in this process and without Ray, once with its naive manager and a reward
function, once with ours and a mount. Run it where verl is installed (constraints/verl.txt):

    python benchmarks/verl_loop.py [--json] [--rows N] [--tokens N] [--mounts N] [--model NAME]
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from figures import Figure, show, warn_if_busy
from length_plugin import install, token_ids, write_run
from turns import in_turns

from verl_core.cli.errors import run as with_messages
from verl_core.trainer.model_source import resolve_model
from verl_reward_sdk import RewardBatch

ALONE_TARGET, INSIDE_TARGET = 1 / 8, 1.1
#: What `length_plugin` scores, for verl.
FUNCTION = """
def score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(len(solution_str))
"""


def main(
    rows: Annotated[int, typer.Option(min=1, help="Responses.")] = 1024,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each.")] = 64,
    mounts: Annotated[int, typer.Option(min=1, help="Mounts of ours.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is measured.")] = 7,
    model: Annotated[
        str, typer.Option(help="A folder or hub id whose tokenizer decodes.")
    ] = "HuggingFaceTB/SmolLM2-135M-Instruct",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure the way from token ids to the reward: the median of microseconds a row."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="verl-loop-") as folder, redirect_stdout(sys.stderr):
        warn_if_busy()
        bench = Bench(Path(folder), str(resolve_model(model).path), rows, tokens, mounts)
        bench.check()
        figures = bench.measure(repeats)
    show(
        f"{rows} responses of {tokens} tokens, {mounts} mount{'s' if mounts > 1 else ''}, "
        f"the median of {repeats} times that each was measured in turn",
        figures,
        as_json=as_json,
        notes=["The peer: verl's RewardLoopWorker with its naive manager, in this process."],
    )


class Bench:
    """The rows, and three ways to score them."""

    def __init__(self, folder: Path, model: str, rows: int, tokens: int, mounts: int) -> None:
        self.rows, self.mounts = rows, mounts
        install(folder)
        write_run(folder / "run.yaml", mounts)
        (folder / "reward_function.py").write_text(FUNCTION, "utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of verl and its libraries
            self.naive = _worker(model, reward_function=folder / "reward_function.py")
            self.ours = _worker(model, config=folder / "run.yaml")
        self.engine = self.ours.reward_manager.engine
        self.tokenizer = self.naive.input_tokenizer
        self.ids = token_ids(self.tokenizer, rows, tokens)
        self.data = _data(self.ids)

    def measure(self, repeats: int) -> list[Figure]:
        seconds = in_turns(
            {
                "naive": lambda: self.loop(self.naive),
                "inside": lambda: self.loop(self.ours),
                "alone": self.alone,
                "decode": self.decode,
            },
            repeats,
        )
        us = {name: taken / self.rows * 1e6 for name, taken in seconds.items()}
        return [
            Figure(name, us[ours], us["naive"], "µs a row", target, higher_is_better=False)
            for name, ours, target in (
                ("token ids to fused reward, engine alone", "alone", ALONE_TARGET),
                ("inside verl's reward loop", "inside", INSIDE_TARGET),
                ("decoding alone", "decode", None),
            )
        ]

    def check(self) -> None:
        """All three give the same numbers."""
        naive = [answer["reward_score"] for answer in self.loop(self.naive)]
        ours = [answer["reward_score"] for answer in self.loop(self.ours)]
        alone = self.alone()
        if not naive == [score / self.mounts for score in ours] == [s / self.mounts for s in alone]:
            raise SystemExit("the three ways do not give the same rewards")

    def loop(self, worker: Any) -> list[dict[str, Any]]:
        """Through verl's worker: one task a row, as `RewardLoopManager` has it do."""
        answers: list[dict[str, Any]] = worker.loop.run_until_complete(
            worker.compute_score_batch(self.data)
        )
        return answers

    def decode(self) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(self.ids, skip_special_tokens=True)
        return texts

    def alone(self) -> list[float]:
        """Through the engine, in one batch."""
        batch = RewardBatch(
            sample_ids=[str(row) for row in range(self.rows)],
            prompts=[""] * self.rows,
            responses=self.decode(),
            training=True,
        )
        fused: list[float] = self.engine.score(batch).fused.tolist()
        return fused


def _worker(model: str, *, reward_function: Path | None = None, config: Path | None = None) -> Any:
    """verl's reward loop worker, configured as its trainer does."""
    import verl
    from hydra import compose, initialize_config_dir
    from verl.experimental.reward_loop import RewardLoopWorker

    overrides = [f"actor_rollout_ref.model.path={model}"]
    if reward_function is not None:
        overrides += [
            f"reward.custom_reward_function.path={reward_function}",
            "reward.custom_reward_function.name=score",
        ]
    if config is not None:
        overrides += [
            "reward.reward_manager.source=importlib",
            "reward.reward_manager.module.path=pkg://verl_core.integrations.verl",
            "reward.reward_manager.name=VerlRewardManager",
            f"+reward.reward_kwargs.verl_reward.config={config}",
        ]
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return RewardLoopWorker(compose("ppo_trainer", overrides=overrides))


def _data(ids: list[list[int]]) -> Any:
    """The rows as verl's agent loop hands them over."""
    import torch
    from verl import DataProto

    rows, responses = len(ids), torch.tensor(ids)
    prompts = torch.full((rows, 64), ids[0][0])
    input_ids = torch.cat([prompts, responses], 1)
    columns: dict[str, list[Any]] = {
        "raw_prompt": [[{"role": "user", "content": "What does it cost?"}] for _ in ids],
        "reward_model": [{"ground_truth": "x"} for _ in ids],
        "extra_info": [{} for _ in ids],
        "data_source": ["bench"] * rows,
        "uid": [str(row // 8) for row in range(rows)],
        "global_steps": [1] * rows,
    }
    arrays = {}
    for name, values in columns.items():
        arrays[name] = np.empty(rows, dtype=object)
        arrays[name][:] = values
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "attention_mask": torch.ones_like(input_ids),
            "input_ids": input_ids,
        },
        non_tensors=arrays,
    )


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    sys.exit(with_messages(lambda: app(prog_name="verl_loop.py")))
