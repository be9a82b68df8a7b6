"""Where providers run, and what loads and closes them."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.rewards import RewardEngine
from verl_reward_sdk import ConfigError, ProviderError, RewardProvider


@pytest.mark.parametrize("execution", ["inline", "thread", "async"])
def test_scores_are_the_same_bits_wherever_the_provider_runs(kit, engine, execution):
    if execution == "async":
        provider = kit.says_later(kit.lengths_later)
    else:
        provider = kit.says(kit.lengths, execution=execution)
    mounts = [{"type": "m", "provider": provider, "weight": 0.1}]
    mounts.append({"type": "n", "provider": kit.says([1 / 3, 0.7]), "weight": 0.3})
    table = engine(*mounts).score(kit.batch(2))
    expected = [0.1 * 8.0 + 0.3 * (1 / 3), 0.1 * 8.0 + 0.3 * 0.7]
    assert table.fused.tolist() == expected


def test_a_place_of_a_later_release_is_refused_at_load(kit, engine):
    with pytest.raises(ConfigError, match=r"ray comes with a later release.*async.*process"):
        engine({"type": "m", "provider": kit.says([1.0], execution="ray")})


def test_a_provider_of_coroutines_runs_as_async_only(kit, engine):
    with pytest.raises(ConfigError, match=r"reward\.m\.execution.*made of coroutines.*async"):
        engine({"type": "m", "provider": kit.says_later(kit.lengths_later), "execution": "thread"})
    with pytest.raises(ConfigError, match=r"not made of coroutines.*thread or process"):
        engine({"type": "m", "provider": kit.says([1.0]), "execution": "async"})


def test_setup_score_and_close_happen_in_one_thread(engine, kit):
    threads = []

    class Notes(RewardProvider):
        """Notes who calls it."""

        def __init__(self):
            pass

        def setup(self):
            threads.append(threading.get_ident())

        def score(self, batch):
            threads.append(threading.get_ident())
            return [1.0]

        close = setup

    built = engine({"type": "m", "provider": Notes})
    built.score(kit.batch(1))
    built.score(kit.batch(1))
    built.close()
    assert len(threads) == 4
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_a_provider_that_cannot_be_loaded_is_named_with_its_mount(kit, engine, execution):
    class Broken(RewardProvider):
        """Cannot be loaded."""

        def __init__(self):
            pass

        def setup(self):
            raise OSError("weights.safetensors is truncated")

    built = engine({"type": "tone", "provider": Broken, "execution": execution})
    with pytest.raises(ProviderError, match=r"'tone'.*OSError: weights.safetensors is truncated"):
        built.setup()


def test_a_closed_engine_says_so(kit):
    built = kit.engine({"type": "m", "provider": kit.says([1.0], execution="thread")})
    built.score(kit.batch(1))
    built.close()
    with pytest.raises(ProviderError, match="closed"):
        built.score(kit.batch(1))


def test_rewards_import_no_torch():
    script = (
        "import sys, verl_core.rewards.engine; print([m for m in ('torch',) if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_mount_runs_where_the_provider_says_unless_the_config_says_otherwise(kit, engine):
    built = engine(
        {"type": "a", "provider": kit.says([1.0], execution="thread")},
        {"type": "b", "provider": kit.says([1.0], execution="thread"), "execution": "inline"},
    )
    assert [mount.execution for mount in built.mounts.values()] == ["thread", "inline"]


def test_an_engine_is_a_context_manager():
    config = RewardsConfig(mounts=(MountConfig(type="m", node_class="here.It"),))
    closed = []

    class Closes(RewardProvider):
        """Says when it is closed."""

        def __init__(self):
            pass

        def close(self):
            closed.append(True)

    with RewardEngine.from_config(config, node_factory=lambda mount, base: Closes()) as built:
        assert built.describe()[0]["state"] == "ready"
    assert closed == [True]
