"""Values that later would be a crash, infinity or a wrong word are refused at load."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from verl_core.config import RunConfig
from verl_core.config.overrides import parse_override
from verl_reward_sdk import ConfigError

Load = Callable[..., RunConfig]
Complain = Callable[..., list[str]]

TONE = "reward: [{type: tone, plugin: rules}]\n"
GATE = "type: g, plugin: safety, role: gate"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.temperature=1e-300", "must be at least 0.001, got 1e-300"),
        ("rollout.temperature=0.0009", "must be at least 0.001"),
        ("rollout.temperature=0", "must be at least 0.001, got 0"),
        ("trainer.threads=100000", "must be at most 1024, got 100000"),
        ("trainer.threads=1025", "must be at most 1024"),
        ("trainer.threads=0", "must be at least 1, got 0"),
    ],
)
def test_a_number_out_of_bounds_is_told_with_the_bound(
    complain: Complain, override: str, words: str
) -> None:
    [line] = complain(TONE, override)
    assert line.startswith(f"override 1: {override.partition('=')[0]}: ")
    assert words in line


def test_the_bounds_themselves_are_inside(load: Load) -> None:
    config = load(TONE, "rollout.temperature=1e-3", "trainer.threads=1024")
    assert (config.rollout.temperature, config.trainer.threads) == (1e-3, 1024)


@pytest.mark.parametrize("value", ["-1.7e308", "-1.1e12", "-1e300"])
def test_a_penalty_has_a_lower_bound(complain: Complain, value: str) -> None:
    text = f"reward: [{{type: tone, plugin: rules}}, {{{GATE}, penalty: {value}}}]\n"
    [line] = complain(text)
    assert "reward.g.penalty: must be at least -1e+12, got -1" in line


@pytest.mark.parametrize(("value", "words"), [("-1e13", "at least -1e+12"), ("2e12", "most 1e+12")])
def test_a_default_score_is_bounded(complain: Complain, value: str, words: str) -> None:
    [line] = complain(f"reward: [{{type: tone, plugin: rules, on_error: {{default: {value}}}}}]\n")
    assert "reward.tone.on_error.default: must be at " in line
    assert words in line


def test_penalties_at_the_bound_add_up_beside_a_default(load: Load) -> None:
    config = load(
        "reward:\n"
        "  - {type: tone, plugin: rules, weight: 1e6, on_error: {default: -1e12}}\n"
        f"  - {{{GATE}, penalty: -1e12}}\n"
    )
    tone, gate = config.reward
    assert np.isfinite(tone.on_error.default * 1e6 + 2 * gate.penalty)


@pytest.mark.parametrize("key", ["when", "only_if"])
@pytest.mark.parametrize("text", ["f == true", "f in [False, 2]", "not (f != false)"])
def test_a_score_is_not_compared_with_a_boolean(complain: Complain, key: str, text: str) -> None:
    after = ", after: [f]" if key == "only_if" else ""
    [line] = complain(
        "reward:\n"
        "  - {type: f, plugin: rules}\n"
        f"  - {{type: g, plugin: rules, {key}: {text!r}{after}}}\n"
    )
    assert f"reward.g.{key}: {text!r} would never hold for a score" in line
    assert "write 1 for true" in line


@pytest.mark.parametrize(
    "text",
    [
        f"init_kwargs.{'.'.join('a' * 3000)}=1",
        f"{'.'.join('a' * 65)}=1",
        f"{'.'.join('a' * 33)}={'[' * 32}{']' * 32}",
        f"{'.'.join('a' * 63)}={{b: {{c: 1}}}}",
        f"{'.'.join('a' * 3000)}=[",
    ],
)
def test_an_override_is_nested_no_deeper_than_a_file_may_be(complain: Complain, text: str) -> None:
    [line] = complain(TONE, text)
    assert line.startswith("override 1: '")
    assert "is nested deeper than 64 levels" in line
    assert len(line) < 300


def test_dots_alone_are_told_briefly(complain: Complain) -> None:
    [line] = complain(TONE, f"{'.' * 3000}=1")
    assert line.startswith("override 1: cannot read '....")
    assert len(line) < 300


def test_as_deep_as_a_file_may_be_is_read() -> None:
    assert len(parse_override(f"{'.'.join('a' * 64)}=1", 1).keys) == 64
    assert parse_override(f"{'.'.join('a' * 62)}=[[1]]", 1).value.unwrap() == [[1]]
    with pytest.raises(ConfigError, match="64 levels"):
        parse_override(f"{'.'.join('a' * 63)}=[[1]]", 1)
