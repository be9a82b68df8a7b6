"""docs/mounts.md: its conditions, its bound on failures and its retries do what it says."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import re
import urllib.error
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.config import MountConfig, RewardsConfig
from verl_core.config.condition import MAX_DEPTH, MAX_LENGTH, ConditionError, parse_condition
from verl_core.rewards import RewardEngine
from verl_core.rewards.execution.retry import is_retryable
from verl_reward_sdk import (
    ConfigError,
    ContractError,
    ProviderConfig,
    ProviderError,
    RewardBatch,
    RewardError,
    RewardProvider,
    RewardResult,
)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "mounts.md").read_text("utf-8")


def rows(first: str, second: str) -> list[list[str]]:
    """The cells below the header that begins with these two."""
    [table] = re.findall(rf"^\| {first} \| {second} \|.*\n\|.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


# -- conditions ------------------------------------------------------------------------------------


def answer(text: str, values: dict[str, object]) -> str:
    try:
        return "yes" if parse_condition(text)(values) else "no"
    except ConditionError:
        return "an error"


@pytest.mark.parametrize("row", rows("condition", "row"), ids=lambda row: row[0])
def test_a_condition_holds_as_the_page_says(row):
    condition, values, told = row
    assert answer(condition.strip("`"), json.loads(values.strip("`"))) == told


def test_every_operator_of_the_grammar_is_in_an_example():
    shown = " ".join(row[0] for row in rows("condition", "row"))
    [signs] = re.findall(r"two with one of  (.*)  between them", PAGE)
    signs = signs.replace('"not in"', "").split()
    for sign in [*signs, "not in", " and ", " or ", "not ", "null"]:
        assert sign in shown or sign in ("!=", "<=", ">"), sign
    for sign in signs:
        parse_condition(f"a {sign} b")


def test_the_limits_of_a_condition_are_those_of_the_page():
    assert f"**Limits**: {MAX_LENGTH} characters, {MAX_DEPTH} levels" in PAGE
    assert answer("not " * MAX_DEPTH + "a", {"a": 1}) == "yes"
    assert answer("not " * (MAX_DEPTH + 1) + "a", {"a": 1}) == "an error"


# -- how many rows may fail ------------------------------------------------------------------------


class Scores(RewardProvider[ProviderConfig]):
    """Gives 1 to the responses that begin with ``ok``, or is out of order for some of them."""

    execution = "inline"

    def __init__(self, name: str, broken: int) -> None:
        super().__init__(ProviderConfig())
        self.of, self.broken = name, broken

    def score(self, batch: RewardBatch) -> Any:
        if self.of == "format":
            return [float(text.startswith("ok")) for text in batch.responses]
        if self.broken == len(batch.responses):
            raise RuntimeError("out of order")
        failures = dict.fromkeys(range(self.broken), "out of order")
        return RewardResult([1.0] * len(batch.responses), failures=failures)


def score(failed: int) -> Any:
    """A step of 32 rows, of which ``style`` is asked about 3, and fails on some."""
    mounts = (
        MountConfig(type="format", node_class="a.B"),
        MountConfig(type="style", node_class="a.B", when="format >= 1"),
    )
    texts = [f"{'ok' if row < 3 else 'no'} {row}" for row in range(32)]
    batch = RewardBatch(
        sample_ids=texts, prompts=["?"] * 32, responses=texts, step=1, training=True
    )
    with RewardEngine.from_config(
        RewardsConfig(mounts=mounts), node_factory=lambda mount, _: Scores(mount.name, failed)
    ) as engine:
        return engine.score(batch)


@pytest.mark.parametrize("row", rows("failed", "asked"), ids=lambda row: row[0])
def test_failures_are_held_against_the_rows_that_were_asked(row):
    failed, asked, told = row
    assert asked == "3"
    if "goes on" in told:
        table = score(int(failed))
        assert int(table.masked.sum()) == int(failed)
        return
    with pytest.raises(RewardError, match=f"style: {failed} of 3 rows failed"):
        score(int(failed))


def test_the_error_is_the_one_on_the_page():
    [told] = re.findall(r"```text\n(the rewards of .*)\n```", PAGE)
    with pytest.raises(RewardError) as caught:
        score(3)
    assert str(caught.value) == told


# -- retries ---------------------------------------------------------------------------------------


class Busy(ProviderError):
    retryable = True


KNOWN = {
    **{kind.__name__: kind for kind in (Busy, ConfigError, ContractError, ProviderError)},
    "asyncio": asyncio,
    "concurrent": concurrent,
    "httpx": httpx,
    "urllib": urllib,
}


@pytest.mark.parametrize("row", rows("the provider raises", "tried again"), ids=lambda row: row[0])
def test_what_is_tried_again_is_what_the_page_says(row):
    raised, told = row
    errors = [text for text in re.findall(r"`([^`]+)`", raised) if "(" in text]
    assert errors
    for text in errors:
        error = eval(text, dict(KNOWN))
        assert is_retryable(error) is told.startswith("yes"), text
