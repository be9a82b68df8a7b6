"""The reward that benchmarks of overhead mount: the length of the response, which takes no time."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

#: Responses are made of them.
WORDS = (
    "the reward plugin reads response text and returns score for every sample in batch while "
    "trainer keeps updating weights of model on small cpu machine"
)
#: An installed reward, as a distribution of its own would bring it.
PLUGIN = """
from verl_reward_sdk import RewardProvider, hookimpl

VERL_REWARD_API = 1


class Length(RewardProvider):
    name = "bench_length"
    execution = "inline"

    def score(self, batch):
        return [float(len(text)) for text in batch.responses]


@hookimpl
def verl_reward_providers():
    return [Length]
"""
METADATA = "Metadata-Version: 2.1\nName: bench-length\nVersion: 1.0\n"
ENTRY_POINTS = "[verl_reward]\nbench_length = bench_length\n"


def install(folder: Path) -> None:
    """Put the plugin where Python finds it, as pip would."""
    (folder / "bench_length.py").write_text(PLUGIN, "utf-8")
    info = folder / "bench_length-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, "utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, "utf-8")
    sys.path.insert(0, str(folder))


def write_run(path: Path, mounts: int) -> None:
    """Write a YAML that mounts it `mounts` times."""
    lines = [f"  - {{type: length_{i}, plugin: bench_length}}\n" for i in range(mounts)]
    path.write_text("reward:\n" + "".join(lines), "utf-8")


def token_ids(tokenizer: Any, rows: int, tokens: int) -> list[list[int]]:
    """(rows, tokens): words in random order, and the end token, as a response has it."""
    draw, words = random.Random(0), WORDS.split()
    texts = [" ".join(draw.choices(words, k=tokens)) for _ in range(rows)]
    end = tokenizer.eos_token_id
    return [[*tokenizer(text).input_ids[: tokens - 1], end] for text in texts]
