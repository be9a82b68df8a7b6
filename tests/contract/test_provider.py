"""The contract's section "A provider"."""

from __future__ import annotations

import asyncio
import threading

import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.rewards import RewardEngine
from verl_reward_sdk import (
    AsyncRewardProvider,
    ConfigError,
    ProviderConfig,
    RewardBatch,
    RewardProvider,
)


class Stages(RewardProvider[ProviderConfig]):
    """Notes what is asked of it, in which order."""

    def __init__(self, notes):
        super().__init__(ProviderConfig())
        self.notes = notes
        notes.append("construct")

    def setup(self):
        self.notes.append("setup")

    def score(self, batch):
        self.notes.append("score")
        return [1.0] * len(batch)

    def close(self):
        self.notes.append("close")


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_a_provider_is_constructed_set_up_asked_and_closed_once_each(engine, rows, execution):
    """Lifecycle: construct -> `setup()` -> `score(batch)` … -> `close()`."""
    notes = []
    built = engine({"type": "m", "provider": Stages(notes), "execution": execution})
    assert notes == ["construct"]  # a config is checked without loading anything
    built.setup()
    built.setup()
    assert notes == ["construct", "setup"]
    for _ in range(2):
        built.score(rows(a=[1.0]))
    built.close()
    assert notes == ["construct", "setup", "score", "score", "close"]


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_without_thread_safe_score_is_never_entered_twice(engine, rows, says, execution):
    """`score(batch)`, from one thread at a time unless `thread_safe = True`."""
    inside, most = threading.Semaphore(0), []
    entered = threading.Lock()

    def score(batch):
        alone = entered.acquire(blocking=False)
        most.append(alone)
        inside.acquire(timeout=0.005)  # gives the other threads time to come in
        if alone:
            entered.release()
        return [1.0] * len(batch)

    built = engine({"type": "m", "provider": says(score, execution=execution)})
    start = threading.Barrier(8)

    def ask():
        start.wait(30)
        for _ in range(4):
            built.score(rows(a=[1.0]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [True] * 32


@pytest.mark.parametrize("scope", ["row", "group"])
@pytest.mark.parametrize("order", [range(6), (5, 0, 3, 1, 4, 2)])
def test_a_group_scoped_provider_never_sees_a_part_of_a_group(engine, rows, scope, order):
    """`scope`: `row` may be streamed, `group` needs a whole group."""
    seen = []

    class Compares(AsyncRewardProvider[ProviderConfig]):
        async def score(self, batch: RewardBatch):
            await asyncio.sleep(0)
            seen.append(tuple(batch.sample_ids))
            return [float(len(batch))] * len(batch)

    Compares.scope = scope
    built = engine({"type": "m", "provider": Compares(ProviderConfig())})
    whole = rows(a=[1.0] * 6, groups=["x", "y", "x", "y", "x", "z"])
    streamed = built.stream(whole.sample_ids, whole.group_ids)
    for row in order:
        streamed.submit(whole.take([row]))
    streamed.run(["m"])
    table = streamed.finish()
    groups = {("s0", "s2", "s4"), ("s1", "s3"), ("s5",)}
    if scope == "group":
        assert set(seen) == groups
        assert table.columns["m"].scores.tolist() == [3.0, 2.0, 3.0, 2.0, 3.0, 1.0]
    else:
        assert set(seen) == {(name,) for name in whole.sample_ids}
    assert len(seen) == len(set(seen))


RULES = "score: {{min: 0, max: 1}}\nrules: [{{name: r, regex: '{word}', points: 1}}]\n"


def test_two_mounts_of_one_plugin_know_nothing_of_each_other(tmp_path, rows):
    """A provider never reads another mount's state: of one plugin each mount has its own."""
    for word in ("0", "1"):
        (tmp_path / f"{word}.yaml").write_text(RULES.format(word=word), "utf-8")
    mounts = tuple(
        MountConfig(type=name, plugin="rules", init_kwargs={"rules": f"{word}.yaml"})
        for name, word in (("first", "0"), ("second", "1"))
    )
    with RewardEngine.from_config(RewardsConfig(mounts=mounts, base_dir=tmp_path)) as built:
        table = built.score(rows(a=[0, 0]))
    assert table.columns["first"].scores.tolist() == [1.0, 0.0]  # "answer 0", "answer 1"
    assert table.columns["second"].scores.tolist() == [0.0, 1.0]


def test_a_config_key_that_a_provider_does_not_declare_is_refused(tmp_path):
    """Declares its `Config` (pydantic): a key that is not in it never passes silently."""
    (tmp_path / "r.yaml").write_text(RULES.format(word="0"), "utf-8")
    kwargs = {"rules": "r.yaml", "rulez": "r.yaml"}
    mount = MountConfig(type="m", plugin="rules", init_kwargs=kwargs)
    with pytest.raises(ConfigError, match=r"init_kwargs\.rulez.*did you mean 'rules'"):
        RewardEngine.from_config(RewardsConfig(mounts=(mount,), base_dir=tmp_path))


@pytest.mark.parametrize("of", ["train", "eval"])
def test_a_column_that_only_the_mounts_reads_names_is_missed_before_a_run_begins(tiny_run, of):
    """The mount's `reads:` adds columns; a missing one is an error before training starts."""
    key = "reward" if of == "train" else "eval_reward"
    mounts = [dict(mount) for mount in tiny_run.config["reward"]]
    mounts[0]["reads"] = ["grund_truth"]
    tiny_run.config[key] = mounts
    with pytest.raises(ConfigError, match=r"'grund_truth', which 'style' reads.*ground_truth"):
        tiny_run.train()
    assert not (tiny_run.folder / "runs").exists()
