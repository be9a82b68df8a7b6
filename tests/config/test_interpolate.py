"""``${oc.env:NAME}`` and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from verl_core.config import RunConfig

Load = Callable[..., RunConfig]
Complain = Callable[..., list[str]]
REWARD = "reward: {type: tone, plugin: rules, init_kwargs: {a: '${oc.env:HOME}', b: '${x}'}}\n"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_PORT", "8123")
    monkeypatch.setenv("RUN_NAME", "blue")
    monkeypatch.setenv("RUN_BAD", "s3cr3t")
    monkeypatch.delenv("RUN_NOWHERE", raising=False)


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("server:\n  port: ${oc.env:RUN_PORT}\n", 8123),
        ("server:\n  port: ${oc.env:RUN_NOWHERE,9000}\n", 9000),
        ("server:\n  port: ${oc.env:RUN_NOWHERE, 9000}\n", 9000),
        ("server:\n  port: ${oc.env:RUN_PORT,9000}\n", 8123),
    ],
)
def test_a_plain_reference_alone_may_be_a_number(load: Load, text: str, port: int) -> None:
    assert load(REWARD + text).server.port == port


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("output: ${oc.env:RUN_NAME}\n", "blue"),
        ("output: runs/${oc.env:RUN_NAME}/${oc.env:RUN_PORT}\n", "runs/blue/8123"),
        ("output: '${oc.env:RUN_PORT}'\n", "8123"),
        ("output: x${oc.env:RUN_NOWHERE,}\n", "x"),
        ("output: ${oc.env:RUN_NOWHERE,a,b}\n", "a,b"),
    ],
)
def test_in_quotes_or_amid_other_text_it_stays_text(load: Load, text: str, output: str) -> None:
    assert load(REWARD + text).output == output


def test_an_override_may_hold_a_reference(load: Load) -> None:
    assert load(REWARD, "server.port=${oc.env:RUN_PORT}").server.port == 8123


def test_init_kwargs_are_never_touched(load: Load) -> None:
    config = load(REWARD, "reward.tone.init_kwargs.c=${oc.env:RUN_NAME}")
    assert config.reward[0].init_kwargs == {
        "a": "${oc.env:HOME}",
        "b": "${x}",
        "c": "${oc.env:RUN_NAME}",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("output: ${oc.env:RUN_NOWHERE}\n", "3:9: output: | no variable 'RUN_NOWHERE' | ,default}"),
        ("output: ${name}\n", "3:9: output: cannot interpolate '${name}' | only ${oc.env:NAME}"),
        ("output: a${oc.env:}\n", "cannot interpolate '${oc.env:}'"),
        ("output: a${oc.env:RUN_NAME\n", "cannot interpolate '${oc.env:RUN_NAME'"),
        ("output: ${oc.decode:x}\n", "cannot interpolate"),
        ("output: ${oc.env:A${oc.env:B}}\n", "cannot interpolate"),
    ],
)
def test_what_cannot_be_interpolated_is_told_once(
    complain: Complain, text: str, words: str
) -> None:
    [line] = complain(text + REWARD)
    for word in words.split(" | "):
        assert word in line


def test_an_unset_variable_in_an_override_is_told_with_its_number(complain: Complain) -> None:
    [line] = complain(REWARD, "server.port=${oc.env:RUN_NOWHERE}")
    assert line.startswith("override 1: server.port: the environment has no variable")


def test_the_environments_value_is_not_repeated_in_an_error(complain: Complain) -> None:
    [line] = complain(REWARD + "server:\n  port: ${oc.env:RUN_BAD}\n")
    assert "s3cr3t" not in line
    assert "expected a whole number, got ${oc.env:RUN_BAD}" in line
