"""Providers that misbehave, in worker processes of their own."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from verl_core.rewards.execution import Call, Limits, wait_any
from verl_core.rewards.execution.process import ProcessRunner
from verl_core.rewards.execution.recipe import Recipe
from verl_reward_sdk import RewardBatch


@pytest.fixture
def misbehaving(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `misbehaving`, where worker processes find it too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("misbehaving")


@pytest.fixture
def deeds(misbehaving: ModuleType, plugin_site: Any) -> None:
    """The plugin of ``deeds.py``, where this process and workers find it."""
    source = (Path(__file__).parent / "deeds.py").read_text(encoding="utf-8")
    names = ("orders", "deed", "rows", "later")
    plugin_site.add(
        "verl-reward-deeds",
        rewards=dict.fromkeys(names, "deeds_plugin"),
        files={"deeds_plugin.py": source},
    )


@pytest.fixture
def process_runner(misbehaving: ModuleType) -> Iterator[Callable[..., ProcessRunner]]:
    """Makes runners of `misbehaving.Obedient`; each is closed when the test ends."""
    made: list[ProcessRunner] = []

    def build(
        *, timeout: float = 20.0, queue_timeout: float = 30.0, options: Any = (), **more: Any
    ) -> ProcessRunner:
        recipe = Recipe("m", misbehaving.make, (dict(options),), more.pop("retries", None))
        made.append(ProcessRunner(recipe, Limits(timeout, queue_timeout), **more))
        return made[-1]

    yield build
    for runner in made:
        runner.close()


def batch(*orders: str, **fields: Any) -> RewardBatch:
    """A batch whose responses tell the provider what to do."""
    return RewardBatch(
        sample_ids=[f"s{i}" for i in range(len(orders))],
        prompts=["question"] * len(orders),
        responses=orders,
        **fields,
    )


def ended(runner: Any, *orders: str, **fields: Any) -> Call:
    """The call of a batch with these orders, once it has ended."""
    call = runner.submit(batch(*orders, **fields))
    wait_any([call])
    return call


@pytest.fixture
def order() -> Callable[..., Any]:
    """Give orders; gives the scores, or the error."""

    def give(runner: Any, *orders: str, **fields: Any) -> Any:
        call = ended(runner, *orders, **fields)
        return call.future.exception() or list(call.future.result().scores)  # type: ignore[attr-defined]

    return give


def _running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Whether a process ends within 20 seconds; one that nobody reaps has ended too."""

    def wait(pid: int) -> bool:
        end = time.monotonic() + 20
        while _running(pid) and time.monotonic() < end:
            time.sleep(0.01)
        return not _running(pid)

    return wait


@pytest.fixture
def read_number() -> Callable[[Path], int]:
    """The number that another process writes into a file, once it is there."""

    def read(path: Path) -> int:
        end = time.monotonic() + 20
        while not (path.exists() and path.read_text().strip()) and time.monotonic() < end:
            time.sleep(0.01)
        return int(path.read_text())

    return read


@pytest.fixture
def make_batch() -> Callable[..., RewardBatch]:
    return batch


@pytest.fixture
def our_descriptors() -> Callable[[], int]:
    """How many files this process holds open."""
    return lambda: len(os.listdir("/proc/self/fd"))
