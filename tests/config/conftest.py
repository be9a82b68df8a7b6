"""A run's YAML on disk, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_core.config import RunConfig, load_run_config
from verl_reward_sdk import ConfigError

#: A run's YAML begins with these two lines, so that a test's own text begins in line 3.
HEAD = "model: {path: owner/name}\ndata: {train: prompts.jsonl}\n"

#: Parts of a test's own text: a reward's keys, a gate's, and a whole ``reward:``.
TONE = "type: tone, plugin: rules"
GATE = "type: g, plugin: safety, role: gate"
SCORED = "reward: {type: tone, plugin: rules}\n"

Load = Callable[..., RunConfig]
Complain = Callable[..., list[str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """``load(text, *overrides, head=HEAD)``: the config of head + text."""

    def load(text: str | bytes, *overrides: str, head: str = HEAD) -> RunConfig:
        path = tmp_path / "run.yaml"
        path.write_bytes(head.encode() + (text.encode() if isinstance(text, str) else text))
        return load_run_config(path, overrides)

    return load


@pytest.fixture
def complain(load: Load, tmp_path: Path) -> Complain:
    """As `load`, for a YAML that must be refused: the lines of the message, its folder cut off."""

    def complain(text: str | bytes, *overrides: str, head: str = HEAD) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides, head=head)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return complain


def check(complain: Complain, text: str, at: str, path: str, words: str) -> None:
    """Exactly one line of the message points at the line and column where `at` stands in the text,
    and names the YAML path; it holds each of `words`, which are separated by `` | ``."""
    before = text[: text.index(at)]
    line = 3 + before.count("\n")  # two lines stand before every text
    column = len(before) - (before.rfind("\n") + 1) + 1
    place = f"run.yaml:{line}:{column}: {path}: "
    lines = complain(text)
    [said] = [line for line in lines if line.startswith(place)] or [f"{place}?? {lines}"]
    for word in words.split(" | "):
        assert word in said
