"""Inside verl: weights that change while it trains, from a file or a control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.verl_kit import rewards, score
from verl_core.control import ControlServer, ControlState
from verl_core.rewards import WeightStore
from verl_reward_sdk import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")

MOUNTS = (
    {"type": "tone", "plugin": "probe"},
    {"type": "other", "plugin": "probe", "weight": 0.0},
)


@pytest.fixture
def control_plane(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, WeightStore]]:
    """The address of a real control plane, and the store behind it."""
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    store = WeightStore({"tone": 1.0, "other": 0.0}, run_id="served", allow_zero=True)
    with ControlServer(ControlState(run_id="served", store=store), "127.0.0.1", 0) as server:
        yield server.url, store
    store.close()


def test_two_workers_on_one_file_score_a_step_with_one_revision(manager, row, tmp_path, caplog):
    path = tmp_path / "weights.db"
    tone = {"type": "tone", "plugin": "probe"}
    first = manager(tone, settings=[f"weights={path}"])
    assert rewards(score(first, row("four", global_steps=1))) == [4.0]
    with_cli = WeightStore({"tone": 1.0}, path=path)
    with_cli.update({"tone": 3.0}, author="test")
    second = manager(tone, settings=[f"weights={path}"])
    late = score(second, row("four", global_steps=1, uid="other"))
    assert rewards(late) == [4.0]
    after = score(second, row("four", global_steps=2)) + score(first, row("four", global_steps=2))
    assert rewards(after) == [12.0, 12.0]
    assert [a["reward_extra_info"]["weights/revision"] for a in late + after] == [1.0, 2.0, 2.0]
    assert "is open elsewhere too" not in caplog.text
    with_cli.close()


def test_the_control_plane_s_weights_hold_from_the_next_step_on(
    manager, row, control_plane, monkeypatch
):
    url, store = control_plane
    monkeypatch.setenv("VERL_REWARD_URL", url)
    loaded = manager(*MOUNTS)
    assert rewards(score(loaded, row("four", global_steps=1))) == [4.0]
    store.update({"tone": 2.0}, author="test")
    assert rewards(score(loaded, row("four", global_steps=1, uid="late"))) == [4.0]
    (answer,) = score(loaded, row("four", global_steps=2))
    assert answer["reward_score"] == 8.0
    assert answer["reward_extra_info"]["weights/revision"] == 2.0


def test_a_control_plane_with_other_mounts_is_refused_at_load(manager, control_plane, monkeypatch):
    url, _ = control_plane
    monkeypatch.setenv("VERL_REWARD_URL", url)
    with pytest.raises(ConfigError, match="other"):
        manager({"type": "tone", "plugin": "probe"})


def test_weights_from_a_file_and_from_a_control_plane_exclude_each_other(
    manager, control_plane, monkeypatch, tmp_path
):
    monkeypatch.setenv("VERL_REWARD_URL", control_plane[0])
    with pytest.raises(ConfigError, match="not from both"):
        manager(*MOUNTS, settings=[f"weights={tmp_path / 'weights.db'}"])
