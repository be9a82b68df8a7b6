"""Providers that learn while they run: what counts, what is kept, and what is taken back."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from verl_core.config.mount import MountConfig
from verl_core.rewards.learner import Learner
from verl_reward_sdk import AsyncRewardProvider, ConfigError, ProviderError, RewardProvider
from verl_reward_sdk.provider import ProviderConfig


class Novelty(RewardProvider[ProviderConfig]):
    """1 for a response that it has not seen before; remembers all it has seen."""

    execution = "inline"

    def __init__(self):
        super().__init__(ProviderConfig())
        self.seen = []
        self.calls = np.zeros(1, dtype=np.int64)

    def score(self, batch):
        scores = [0.0 if text in self.seen else 1.0 for text in batch.responses]
        self.seen += batch.responses
        self.calls += 1
        return scores

    def state(self):
        return {"seen": self.seen, "calls": self.calls}

    def load_state(self, state):
        self.seen, self.calls = list(state["seen"]), state["calls"].copy()


class LateNovelty(AsyncRewardProvider[ProviderConfig]):
    """Counts its calls."""

    def __init__(self):
        super().__init__(ProviderConfig())
        self.count = 0

    async def setup(self):
        self.count = 0

    async def score(self, batch):
        self.count += 1
        return [float(self.count)] * len(batch)

    def state(self):
        return {"count": self.count}

    def load_state(self, state):
        self.count = state["count"]


def scores(engine, batch):
    return engine.score(batch).columns["n"].scores.tolist()


def test_what_was_learnt_counts_once_the_step_is_finished(kit, engine):
    built = engine({"type": "n", "provider": Novelty})
    built.setup()
    assert built.state()["providers"] == {"n": {"seen": [], "calls": np.zeros(1)}}
    table = built.score(kit.batch(2, step=1))
    assert table.fused.tolist() == [1.0, 1.0]
    assert built.state()["providers"]["n"]["seen"] == []  # the step is not finished
    built.step_end(table)
    kept = built.state()["providers"]["n"]
    assert kept["seen"] == ["answer 0", "answer 1"]
    assert kept["calls"].tolist() == [1]
    scores(built, kit.batch(3, step=2))
    assert kept["calls"].tolist() == [1]  # a copy


def test_a_step_that_is_scored_again_does_not_learn_twice(kit, engine):
    built = engine({"type": "n", "provider": Novelty})
    built.step_end(built.score(kit.batch(1, step=1)))
    assert scores(built, kit.batch(2, step=2)) == [0.0, 1.0]
    assert scores(built, kit.batch(2, step=2)) == [0.0, 0.0]  # it remembers the first attempt
    built.step_again()
    table = built.score(kit.batch(2, step=2))
    assert table.fused.tolist() == [0.0, 1.0]
    built.step_end(table)
    assert built.state()["providers"]["n"]["calls"].tolist() == [2]


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_an_engine_goes_on_with_what_another_learnt(kit, engine, execution):
    one = engine({"type": "n", "provider": Novelty, "execution": execution})
    other = engine({"type": "n", "provider": Novelty, "execution": execution})
    one.step_end(one.score(kit.batch(2, step=1)))
    other.load_state(one.state())
    assert scores(other, kit.batch(3, step=2)) == [0.0, 0.0, 1.0]


def test_coroutines_learn_too(kit, engine):
    one, other = (engine({"type": "n", "provider": LateNovelty}) for _ in range(2))
    one.step_end(one.score(kit.batch(1, step=1)))
    other.load_state(one.state())
    assert scores(other, kit.batch(1, step=2)) == [2.0]


def test_a_fresh_instance_in_the_place_of_one_that_hung_takes_up_what_was_kept(
    kit, engine, gate_event
):
    hangs = threading.Event()

    class Hangs(Novelty):
        """Hangs in its second call."""

        execution = "thread"

        def score(self, batch):
            if hangs.is_set():
                hangs.clear()
                gate_event.wait(60)
            return super().score(batch)

    built = engine({"type": "n", "provider": Hangs, "timeout": 0.3, **kit.lenient})
    built.step_end(built.score(kit.batch(2, step=1)))
    hangs.set()
    failed = built.score(kit.batch(2, step=2, training=False))
    assert failed.columns["n"].status.tolist() == ["failed"] * 2
    assert scores(built, kit.batch(3, step=2)) == [0.0, 0.0, 1.0]


class Odd(Novelty):
    """A state that no checkpoint can hold."""

    def state(self):
        return {"model": {"layers": [object()]}}


class Broken(Novelty):
    """Cannot say what it knows."""

    def state(self):
        raise KeyError("seen")


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        (Odd, r"'n': state\(\)\['model'\]\['layers'\]\[0\] is a object, and a state holds plain"),
        (Broken, r"'n': its provider's state cannot be used: KeyError"),
    ],
)
def test_a_state_that_cannot_be_kept_names_the_mount_and_the_place(engine, provider, words):
    with pytest.raises(ProviderError, match=words):
        engine({"type": "n", "provider": provider}).setup()


def test_a_provider_without_a_state_has_none_to_keep():
    class Plain(RewardProvider):
        """Knows nothing."""

    learner = Learner("n", lambda: Plain(ProviderConfig()))
    learner.build()
    learner.keep()
    assert not learner.learns
    assert learner.state() is None


def test_what_learns_is_refused_in_a_process_that_may_be_killed(plugin_site, tmp_path):
    from verl_core.config.rewards import RewardsConfig
    from verl_core.plugins import PluginRegistry
    from verl_core.rewards import RewardEngine

    module = """
from verl_reward_sdk import RewardProvider, hookimpl

VERL_REWARD_API = 1

class Learns(RewardProvider):
    name = "learns"
    def score(self, batch):
        return [0.0] * len(batch)
    def state(self):
        return {"n": 1}

@hookimpl
def verl_reward_providers():
    yield Learns
"""
    plugin_site.add("acme", rewards={"learns": "acme_learns"}, files={"acme_learns.py": module})
    cfg = RewardsConfig(
        mounts=(MountConfig(type="n", plugin="learns", execution="process"),), base_dir=tmp_path
    )
    with pytest.raises(ConfigError, match=r"reward\.n\.execution: .*learns while it runs"):
        RewardEngine.from_config(cfg, registry=PluginRegistry())
