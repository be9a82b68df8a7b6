"""The contract's section "Where a provider runs"."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.rewards import RewardEngine
from verl_reward_sdk import AsyncRewardProvider, ConfigError, ProviderConfig, RewardBatch

LENIENT = {"on_error": "abstain", "max_error_rate": 1.0}


def test_the_deadlines_of_a_mount_that_names_none():
    """`timeout: 60` s by default; `max_abandoned: 3`; `execution` is the provider's own."""
    mount = MountConfig(type="m", plugin="rules")
    assert (mount.timeout, mount.queue_timeout, mount.max_abandoned) == (60.0, None, 3)
    assert mount.execution is None


@pytest.mark.parametrize("keys", [{}, {"queue_timeout": 30.0}], ids=["default", "named"])
def test_queue_timeout_is_as_long_as_timeout_unless_it_is_named(engine, rows, keys):
    """`queue_timeout` (the same) bounds the wait before it, and ends as `failed`: of five calls in
    one line, each of them in time by itself, the last ones wait longer than `timeout`."""

    class Slow(AsyncRewardProvider[ProviderConfig]):
        async def score(self, batch):
            await asyncio.sleep(0.5)
            return [1.0] * len(batch)

    mount = {"type": "m", "provider": Slow(ProviderConfig()), "workers": 1, "timeout": 1.0}
    built = engine({**mount, **keys, **LENIENT})
    built.setup()
    with ThreadPoolExecutor(5) as pool:
        tables = list(pool.map(lambda _: built.score(rows(1)), range(5)))
    said = {str(table.columns["m"].reasons[0]) for table in tables}
    late = "not begun within queue_timeout: 1 s"
    assert any(late in reason for reason in said) == (not keys), said


@pytest.mark.parametrize("place", ["inline", "thread", "process"])
def test_retries_live_inside_the_deadline(tmp_path, plugin_site, place):
    """Retries live inside the deadline: a call that always fails ends at its timeout with its own
    error or as timed out, and its rows are `failed`; inline mounts, which have no deadline, refuse
    `retries:` at load."""
    plugin_site.add("flaky", rewards={"flaky": "flaky_reward"}, files={"flaky_reward.py": FLAKY})
    note = tmp_path / "calls"
    keys = {"execution": place, "retries": 1000, "retry_wait": 0.05, "timeout": 1.5, **LENIENT}
    kwargs = {"note": str(note)}

    def make():
        mount = MountConfig(type="m", plugin="flaky", init_kwargs=kwargs, **keys)
        return RewardEngine.from_config(RewardsConfig(mounts=(mount,)))

    if place == "inline":
        with pytest.raises((ConfigError, ValueError), match="retries: is not for an inline mount"):
            make()
        return
    with make() as built:
        batch = RewardBatch(sample_ids=["a"], prompts=["p"], responses=["r"])
        table = built.score(batch)
        made = note.read_text("utf-8").count(".")
    assert table.columns["m"].status.tolist() == ["failed"]
    assert 2 <= made < 100  # tried again, and stopped long before 1000 times


FLAKY = """
import pathlib
from verl_reward_sdk import ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1

class FlakyConfig(ProviderConfig):
    note: str

class Flaky(RewardProvider[FlakyConfig]):
    name = "flaky"

    def score(self, batch):
        with pathlib.Path(self.config.note).open("a") as file:
            file.write(".")
        raise ConnectionError("try again")

@hookimpl
def verl_reward_providers():
    return [Flaky]
"""
