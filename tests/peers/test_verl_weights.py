"""Which weights a row is scored with inside verl: one lease a step, or a prompt group."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.control import ControlServer, ControlState
from verl_core.integrations.verl_weights import ControlPlaneWeights, EngineWeights, Leases
from verl_core.rewards import Lease, RewardEngine, WeightStore
from verl_core.rewards.schedules import Linear
from verl_reward_sdk import ConfigError, VerlRewardError

PLUGIN = """
from verl_reward_sdk import RewardProvider, hookimpl

VERL_REWARD_API = 1


class One(RewardProvider):
    name = "one"

    def score(self, batch):
        return [1.0] * len(batch)


@hookimpl
def verl_reward_providers():
    return [One]
"""


@pytest.fixture
def engine(plugin_site: Any, request: pytest.FixtureRequest) -> Any:
    plugin_site.add("one-plugin", rewards={"one": "one_plugin"}, files={"one_plugin.py": PLUGIN})

    def build(path: Path | None = None) -> RewardEngine:
        mounts = [
            MountConfig.model_validate(item)
            for item in (
                {"type": "tone", "plugin": "one", "weight": {"linear": RAMP}},
                {"type": "other", "plugin": "one"},
            )
        ]
        made = RewardEngine.from_config(RewardsConfig(mounts=tuple(mounts)), store_path=path)
        request.addfinalizer(made.close)
        return made

    return build


RAMP = {"from": 0.0, "to": 1.0, "steps": 10}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ControlServer, WeightStore]]:
    """A real control plane over a store with the same mounts."""
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    store = WeightStore({"tone": Linear(0.0, 1.0, 10), "other": 1.0}, run_id="served")
    server = ControlServer(ControlState(run_id="served", store=store), "127.0.0.1", 0)
    server.start()
    yield server, store
    server.stop()
    store.close()


class Counting:
    """A source that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int | None, Hashable | None]] = []

    def take(self, step: int | None, group: Hashable | None) -> Lease:
        self.asked.append((step, group))
        return Lease(len(self.asked), {"tone": 1.0}, {"tone": 1}, step)


def test_a_step_has_one_lease_whatever_its_groups_and_is_asked_for_once():
    source = Counting()
    leases = Leases(source)
    assert leases.known(3, "a") is None
    first = leases.take(3, "a")
    assert leases.take(3, "b") is first
    assert leases.known(3, "c") is first
    assert leases.take(4, "a").revision == 2
    assert source.asked == [(3, "a"), (4, "a")]


def test_without_a_step_each_group_has_its_own_lease_and_without_a_group_each_row():
    source = Counting()
    leases = Leases(source)
    assert leases.take(None, "a") is leases.take(None, "a")
    assert leases.take(None, "b").revision == 2
    assert [leases.take(None, None).revision for _ in range(2)] == [3, 4]
    assert leases.known(None, None) is None


def test_many_threads_that_ask_at_once_get_the_same_lease():
    source = Counting()
    leases, got = Leases(source), []
    threads = [threading.Thread(target=lambda: got.append(leases.take(1, "a"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(lease) for lease in got}) == 1
    assert len(source.asked) == 1


def test_old_leases_are_forgotten(monkeypatch):
    monkeypatch.setattr("verl_core.integrations.verl_weights._KEPT", 3)
    leases = Leases(Counting())
    for step in range(5):
        leases.take(step, None)
    assert [leases.known(step, None) is not None for step in range(5)] == [False] * 2 + [True] * 3


def test_the_config_s_schedules_are_read_at_the_step(engine):
    source = EngineWeights(engine())
    assert dict(source.take(0, "a").weights) == {"tone": 0.0, "other": 1.0}
    assert dict(source.take(5, "a").weights) == {"tone": 0.5, "other": 1.0}


def test_a_file_gives_a_step_one_revision_in_every_process_and_after_a_restart(engine, tmp_path):
    path = tmp_path / "weights.db"
    first, second = engine(path), engine(path)
    assert EngineWeights(first).take(1, "a").revision == 1
    first.store.update({"other": 4.0}, author="test")
    assert EngineWeights(second).take(1, "b").revision == 1
    assert dict(EngineWeights(second).take(2, "b").weights) == {"tone": 0.2, "other": 4.0}
    first.close()
    assert EngineWeights(engine(path)).take(1, "c").revision == 1


def test_a_change_in_the_file_is_seen_by_groups_without_a_step(engine, tmp_path):
    path = tmp_path / "weights.db"
    first, second = engine(path), engine(path)
    source = EngineWeights(second)
    assert source.take(None, "a").weights["other"] == 1.0
    first.store.update({"other": 4.0}, author="test")
    assert source.take(None, "b").weights["other"] == 4.0


def test_the_control_plane_s_schedules_move_on_and_pins_stand_over_them(engine, served):
    server, store = served
    source = ControlPlaneWeights(engine(), server.url, "s")
    assert dict(source.take(5, "a").weights) == {"tone": 0.5, "other": 1.0}
    store.update({"tone": 0.1, "other": 3.0}, author="test")
    lease = source.take(6, "a")
    assert dict(lease.weights) == {"tone": 0.1, "other": 3.0}
    assert (lease.revision, lease.step, dict(lease.generations)) == (2, 6, {"tone": 1, "other": 1})


def test_without_a_step_each_group_has_a_lease_of_the_control_plane(engine, served):
    server, store = served
    first = ControlPlaneWeights(engine(), server.url, "s")
    second = ControlPlaneWeights(engine(), server.url, "s")
    assert first.take(None, "a").revision == 1
    store.update({"other": 3.0}, author="test")
    assert second.take(None, "a").revision == 1  # whoever asks
    assert second.take(None, "b").revision == 2
    assert first.take(None, "b").weights["other"] == 3.0
    odd = "x" * 300 + "\n"
    assert first.take(None, odd).revision == second.take(None, odd).revision == 2


def test_rows_without_step_and_group_read_what_is_in_force_now_and_then(
    engine, served, monkeypatch
):
    server, store = served
    source = ControlPlaneWeights(engine(), server.url, "s")
    store.update({"other": 3.0}, author="test")
    assert source.take(None, None).revision == 1  # read a moment ago
    monkeypatch.setattr("verl_core.integrations.verl_weights._AGE", 0.0)
    assert source.take(None, None).revision == 2


def test_workers_on_either_side_of_a_change_score_a_step_by_one_revision(engine, served):
    server, store = served
    workers = [ControlPlaneWeights(engine(), server.url, "s") for _ in range(3)]
    assert workers[0].take(4, "a").revision == 1
    store.update({"tone": 9.0}, author="test")
    leases = [worker.take(4, "b") for worker in workers]
    assert [lease.revision for lease in leases] == [1, 1, 1]
    assert {lease.weights["tone"] for lease in leases} == {0.4}
    assert [worker.take(5, "a").revision for worker in workers] == [2, 2, 2]


def test_a_training_that_is_started_again_does_not_get_the_old_one_s_leases(engine, served):
    server, store = served
    assert ControlPlaneWeights(engine(), server.url, "s").take(0, "a").revision == 1
    store.update({"other": 3.0}, author="test")
    assert ControlPlaneWeights(engine(), server.url, "t").take(0, "a").revision == 2


def test_a_control_plane_that_is_started_again_is_waited_for_and_keeps_the_lease(
    engine, monkeypatch, tmp_path, caplog
):
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    monkeypatch.setattr("verl_core.integrations.remote_weights._PATIENCE", 60.0)

    def serve(port=0):
        mounts = {"tone": Linear(0.0, 1.0, 10), "other": 1.0}
        store = WeightStore(mounts, run_id="served", path=tmp_path / "weights.db")
        server = ControlServer(ControlState(run_id="served", store=store), port=port)
        server.start()
        return server, store

    server, store = serve()
    first = ControlPlaneWeights(engine(), server.url, "s")
    second = ControlPlaneWeights(engine(), server.url, "s")
    assert first.take(3, "a").revision == 1
    store.update({"other": 3.0}, author="test")
    server.stop()
    store.close()
    got = []
    waiting = threading.Thread(target=lambda: got.append(second.take(3, "b")))
    waiting.start()
    server, store = serve(server.port)
    waiting.join()
    assert [lease.revision for lease in got] == [1]
    assert "stay at revision" not in caplog.text
    server.stop()
    store.close()


def test_another_run_at_the_address_is_an_error_and_not_another_lease(engine, served):
    server, _ = served
    source = ControlPlaneWeights(engine(), server.url, "s")
    port = server.port
    server.stop()
    state = ControlState(
        run_id="another", store=WeightStore({"tone": 1.0, "other": 1.0}, run_id="another")
    )
    with ControlServer(state, port=port), pytest.raises(ConfigError, match="run 'another'"):
        source.take(1, "a")
    state.store.close()


def test_a_control_plane_that_goes_away_leaves_its_last_weights_and_a_warning(
    engine, served, caplog, monkeypatch
):
    monkeypatch.setattr("verl_core.integrations.remote_weights._PATIENCE", 0.0)
    server, store = served
    source = ControlPlaneWeights(engine(), server.url, "s")
    store.update({"other": 3.0}, author="test")
    source.take(1, "a")
    server.stop()
    lease = source.take(2, "a")
    assert (lease.revision, lease.weights["other"], lease.weights["tone"]) == (2, 3.0, 0.2)
    assert "revision 2" in caplog.text


def test_a_control_plane_that_never_answered_is_an_error_at_load(engine, served):
    server, _ = served
    server.stop()
    with pytest.raises(VerlRewardError, match="no control plane answers"):
        ControlPlaneWeights(engine(), server.url, "s")


def test_a_control_plane_of_other_mounts_is_refused(engine, monkeypatch):
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    store = WeightStore({"tone": 1.0, "strange": 1.0}, run_id="served")
    with (
        ControlServer(ControlState(run_id="served", store=store), "127.0.0.1", 0) as server,
        pytest.raises(ConfigError, match="other, strange"),
    ):
        ControlPlaneWeights(engine(), server.url, "s")
    store.close()
