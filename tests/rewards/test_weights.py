from __future__ import annotations

import logging
import math
import pickle
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from verl_core.rewards.schedules import Linear, Setting, Step, parse_schedule
from verl_core.rewards.weights import StaleRevision, WeightError, WeightStore
from verl_reward_sdk.errors import ConfigError

THREE: Mapping[str, Setting] = {"accuracy": 1.0, "tone": 1.0, "compliance": 1.0}


def store(weights: Mapping[str, Setting] = THREE, **options: Any) -> WeightStore:
    return WeightStore(weights, run_id="r", **options)


def test_the_configs_weights_are_revision_one_by_the_config() -> None:
    first = store({"a": 2.0, "b": Linear(1.0, 0.0, 10)}).snapshot()
    assert (first.revision, first.author, first.effective_step) == (1, "config", 0)
    assert dict(first.weights) == {"a": 2.0, "b": 1.0}
    assert first.pinned == ()
    assert dict(first.schedules) == {
        "b": {"linear": {"from": 1.0, "to": 0.0, "steps": 10, "start": 0}}
    }


def test_an_update_merges_pins_and_says_who_and_why() -> None:
    weights = store()
    after = weights.update({"accuracy": 2, "compliance": 0.5}, author="li", reason="complaints")
    assert after == weights.snapshot()
    assert dict(after.weights) == {"accuracy": 2.0, "tone": 1.0, "compliance": 0.5}
    assert after.pinned == ("accuracy", "compliance")
    assert (after.revision, after.author, after.reason) == (2, "li", "complaints")


def test_a_snapshot_neither_changes_nor_can_be_changed() -> None:
    weights = store()
    before = weights.snapshot()
    weights.update({"tone": 3}, author="li")
    assert before.weights["tone"] == 1.0
    with pytest.raises(TypeError):
        before.weights["tone"] = 9.0  # type: ignore[index]
    assert pickle.loads(pickle.dumps(before)) == before


@pytest.mark.parametrize(
    "value", [True, None, "2", [2], {"linear": {}}, -1, math.nan, math.inf, -math.inf, 10**400]
)
def test_one_bad_value_of_three_changes_nothing(value: object) -> None:
    weights = store()
    before = weights.snapshot()
    with pytest.raises(WeightError) as refused:
        weights.update({"accuracy": 2, "tone": value, "compliance": 0.5}, author="li")
    assert set(refused.value.reasons) == {"tone"}
    assert weights.snapshot() == before
    assert len(weights.history()) == 1


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(WeightError, match="did you mean 'accuracy'") as refused:
        store().update({"acuracy": 2}, author="li")
    assert refused.value.nearest == {"acuracy": "accuracy"}


def test_a_name_that_is_no_text_and_a_step_beyond_numbers_are_refused() -> None:
    weights = store()
    with pytest.raises(WeightError, match="1: a mount's name is a text"):
        weights.update({1: 2}, author="li")  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="a step is a whole number from 0 to"):
        weights.lease(2**70)


def test_a_gate_has_no_weight() -> None:
    weights = store(gates=["guard"])
    with pytest.raises(WeightError, match="guard: it is a gate, and a gate has no weight"):
        weights.update({"guard": 1}, author="li")


def test_an_empty_change_is_refused() -> None:
    with pytest.raises(WeightError, match="no weight was given"):
        store().update({}, author="li")


def test_a_flood_of_unknown_names_is_answered_by_the_first_few() -> None:
    with pytest.raises(WeightError) as refused:
        store().update({f"n{i}" * 200: 1 for i in range(100_000)}, author="li")
    assert len(refused.value.reasons) == 20


def test_replace_needs_every_name() -> None:
    weights = store()
    with pytest.raises(WeightError, match="compliance: it is missing"):
        weights.update({"accuracy": 1, "tone": 2}, author="li", replace=True)
    full = weights.update({"accuracy": 1, "tone": 2, "compliance": 3}, author="li", replace=True)
    assert list(full.weights.values()) == [1.0, 2.0, 3.0]


def test_all_zero_is_refused_unless_allowed() -> None:
    weights = store({"a": 1.0})
    with pytest.raises(WeightError, match="every weight would be 0"):
        weights.update({"a": 0}, author="li")
    assert store({"a": 1.0}, allow_zero=True).update({"a": 0}, author="li").weights["a"] == 0.0
    with pytest.raises(ConfigError, match="every weight would be 0"):
        store({"a": 0.0})


def test_a_run_of_gates_alone_has_no_weights_to_be_zero() -> None:
    weights = store({}, gates=["guard"])
    assert dict(weights.snapshot().weights) == {}
    with pytest.raises(WeightError, match=r"no mount has this name$"):
        weights.update({"a": 1}, author="li")


def test_all_zero_is_refused_at_a_later_step_of_a_schedule_too() -> None:
    weights = store({"a": Linear(1.0, 0.0, 50), "b": 1.0})
    with pytest.raises(WeightError, match="at step 50: every weight would be 0"):
        weights.update({"b": 0}, author="li")
    stairs = {"a": Step(1.0, ((7, 0.0), (8, 1.0))), "b": 1.0}
    with pytest.raises(WeightError, match="at step 7: "):
        store(stairs).update({"b": 0}, author="li")


def only_zero_or_one(weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        if weight not in (0.0, 1.0):
            raise ConfigError(f"min takes the weights 0 and 1, not {weight:g}", path=name)


def test_what_the_policy_would_refuse_at_load_is_refused_live() -> None:
    weights = store({"a": 1.0, "b": 1.0}, check=only_zero_or_one)
    with pytest.raises(WeightError, match=r"min takes the weights 0 and 1, not 0\.5"):
        weights.update({"a": 0.5}, author="li")
    assert weights.update({"a": 0}, author="li").revision == 2


def test_what_the_policy_refuses_between_a_schedules_ends_is_refused_at_load() -> None:
    with pytest.raises(ConfigError, match="at step 1: a: min takes"):
        store({"a": Linear(0.0, 1.0, 9), "b": 1.0}, check=only_zero_or_one)


def test_a_schedule_of_millions_of_steps_is_judged_at_its_corners() -> None:
    judged: list[float] = []
    weights = store({"a": Linear(1.0, 0.0, 10**7), "b": 1.0}, check=lambda w: judged.append(w["a"]))
    assert len(judged) < 2000
    assert {1.0, 0.0} <= set(judged)
    with pytest.raises(WeightError, match="at step 10000000"):
        weights.update({"b": 0}, author="li")


def test_a_pin_stands_over_a_schedule_until_it_is_cleared() -> None:
    weights = store({"a": Linear(2.0, 0.0, 10), "b": 1.0})
    weights.update({"a": 5}, author="li")
    assert weights.snapshot(10).weights["a"] == 5.0
    assert "a" in weights.snapshot().schedules
    cleared = weights.unpin("a", author="li")
    assert cleared.revision == 3
    assert cleared.pinned == ()
    assert weights.snapshot(5).weights["a"] == 1.0


@pytest.mark.parametrize(
    ("names", "said"),
    [(("a",), "it is not pinned"), (("x",), "no mount has this name"), ((), "no name was given")],
)
def test_only_a_pin_can_be_cleared(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(WeightError, match=said):
        store({"a": 1.0}).unpin(*names, author="li")


def test_clearing_a_pin_is_judged_like_any_change() -> None:
    weights = store({"a": 0.0, "b": 1.0})
    weights.update({"a": 1}, author="li")
    weights.update({"b": 0}, author="li")
    with pytest.raises(WeightError, match="every weight would be 0"):
        weights.unpin("a", author="li")


def test_rollback_is_a_new_revision_with_the_old_settings() -> None:
    weights = store({"a": Linear(2.0, 0.0, 10), "b": 1.0})
    weights.update({"a": 5, "b": 6}, author="li")
    back = weights.rollback(1, author="wang", reason="worse")
    assert (back.revision, back.author) == (3, "wang")
    assert back.reason == "rollback to revision 1: worse"
    assert back.pinned == ()
    assert weights.snapshot(5).weights == {"a": 1.0, "b": 1.0}


def test_rollback_to_nowhere_is_refused() -> None:
    with pytest.raises(WeightError, match="revision: there is no 9, the newest is 1"):
        store().rollback(9, author="li")


def test_a_stale_revision_changes_nothing() -> None:
    weights = store()
    weights.update({"tone": 2}, author="li", if_revision=1)
    with pytest.raises(StaleRevision) as stale:
        weights.update({"tone": 3}, author="wang", if_revision=1)
    assert (stale.value.expected, stale.value.current) == ((1,), 2)
    assert weights.snapshot().weights["tone"] == 2.0


@pytest.mark.parametrize("author", ["", "  ", "a\nb", "x" * 201])
def test_an_author_must_be_one_that_can_be_read(author: str) -> None:
    weights = store()
    with pytest.raises(ValueError, match="author"):
        weights.update({"tone": 2}, author=author)
    assert weights.snapshot().revision == 1


def test_the_history_tells_who_when_before_after_and_why() -> None:
    weights = store({"a": Linear(2.0, 0.0, 10), "b": 1.0})
    weights.update({"a": 5}, author="li", reason="test")
    newest, first = weights.history()
    assert (newest.revision, newest.author, newest.reason) == (2, "li", "test")
    assert newest.time >= first.time
    assert newest.time.endswith("Z")
    assert newest.before == first.after == {"a": Linear(2.0, 0.0, 10).as_dict(), "b": 1.0}
    assert newest.after == {"a": 5.0, "b": 1.0}
    assert first.before == {}
    assert weights.history(limit=1) == [newest]
    assert newest.as_dict()["pinned"] == ["a"]


def test_a_change_takes_effect_after_the_last_leased_step() -> None:
    weights = store()
    assert weights.lease(1).revision == 1
    changed = weights.update({"tone": 2}, author="li")
    assert (changed.effective_step, changed.step) == (2, 2)
    assert weights.lease(1).weights["tone"] == 1.0
    assert weights.lease(2).weights["tone"] == 2.0
    assert weights.update({"tone": 3}, author="li").effective_step == 3


def test_a_snapshot_shows_the_step_in_progress_or_the_one_that_a_change_waits_for() -> None:
    weights = store({"a": Linear(10.0, 0.0, 10), "b": 1.0})
    weights.lease(4)
    assert (weights.snapshot().step, weights.snapshot().weights["a"]) == (4, 6.0)
    weights.update({"b": 2}, author="li")
    assert (weights.snapshot().step, weights.snapshot().weights["a"]) == (5, 5.0)
    weights.lease(5)
    weights.lease(6)
    assert (weights.snapshot().step, weights.snapshot().weights["a"]) == (6, 4.0)


def test_a_lease_over_a_skipped_step_takes_what_was_in_force_then() -> None:
    weights = store()
    weights.lease(5)
    weights.update({"tone": 2}, author="li")
    assert weights.lease(9).revision == 2
    assert weights.lease(3).revision == 1


@pytest.mark.parametrize("step", [-1, True, 1.5])
def test_a_step_is_a_whole_number(step: Any) -> None:
    with pytest.raises(ValueError, match="a step is a whole number"):
        store().lease(step)


def test_a_wrong_weight_in_the_config_is_named_by_its_path() -> None:
    with pytest.raises(ConfigError) as refused:
        store({"a": 1.0, "b": math.nan})
    assert refused.value.path == "reward.b.weight"


def test_observers_see_each_change_and_a_broken_one_hurts_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weights = store()
    seen: list[tuple[int, int, float]] = []

    def broken(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        raise RuntimeError("observer")

    weights.subscribe(broken)
    weights.subscribe(
        lambda b, a: seen.append((b["revision"], a["revision"], a["weights"]["tone"]))
    )
    with caplog.at_level(logging.ERROR):
        weights.update({"tone": 2}, author="li")
        weights.update({"tone": 3}, author="li")
    assert seen == [(1, 2, 2.0), (2, 3, 3.0)]
    assert len(caplog.records) == 1


def test_two_writers_on_one_revision_one_wins() -> None:
    weights = store()
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def write(value: int) -> None:
        start.wait()
        try:
            weights.update(dict.fromkeys(THREE, value), author=f"w{value}", if_revision=1)
            outcomes.append("won")
        except StaleRevision:
            outcomes.append("stale")

    threads = [threading.Thread(target=write, args=(value,)) for value in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["stale"] * 7 + ["won"]
    assert len(set(weights.snapshot().weights.values())) == 1
    assert weights.snapshot().revision == 2


def test_readers_never_see_half_a_change() -> None:
    weights = store()
    done = threading.Event()
    torn: list[object] = []
    revisions: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen = weights.snapshot()
            revisions.append(seen.revision)
            if len(set(seen.weights.values())) != 1:
                torn.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    writers = [
        threading.Thread(
            target=lambda v=v: [  # type: ignore[misc]
                weights.update(dict.fromkeys(THREE, v + i), author="w") for i in range(50)
            ]
        )
        for v in (1, 1000)
    ]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert torn == []
    assert revisions == sorted(revisions)
    assert weights.snapshot().revision == 101


def test_one_of_several_revisions_may_be_the_newest() -> None:
    weights = store()
    weights.update({"tone": 2}, author="li", if_revision={7, 1})
    with pytest.raises(StaleRevision, match="revision 1 or 7, the newest is 2"):
        weights.update({"tone": 3}, author="wang", if_revision=[7, 1])
    with pytest.raises(StaleRevision, match="no revision of these weights, the newest is 2"):
        weights.update({"tone": 3}, author="wang", if_revision=())
    assert weights.snapshot().weights["tone"] == 2.0


@pytest.mark.parametrize("value", [1e308, 10**400, 1_000_000.5], ids=["1e308", "10**400", "more"])
def test_a_weight_beyond_the_bound_is_refused_live_and_in_every_schedule(value: float) -> None:
    weights = store()
    with pytest.raises(WeightError, match=r"tone: .*(above 1000000|not finite)"):
        weights.update({"tone": value}, author="li")
    for form in (
        {"linear": {"from": 1, "to": value, "steps": 3}},
        {"step": {"from": 1, "at": [[2, value]]}},
        {"step": {"from": value, "at": [[2, 1]]}},
    ):
        with pytest.raises(ValueError, match=r"above 1000000|not finite"):
            parse_schedule(form)
    weights.update({"tone": 1e6}, author="li")
    assert weights.snapshot().weights["tone"] == 1e6


def test_names_are_the_same_however_their_letters_are_composed() -> None:
    weights = WeightStore({"caf\u00e9": 1.0, "tone": 1.0})
    weights.update({"cafe\u0301": 3}, author="li")
    assert weights.snapshot().weights["caf\u00e9"] == 3.0
    with pytest.raises(WeightError, match=r"given twice: as 'caf\\xe9' and 'cafe\\u0301'"):
        weights.update({"caf\u00e9": 1, "cafe\u0301": 3}, author="li")
    weights.update({"cafe\u0301": 4, "tone": 2}, author="li", replace=True)
    weights.unpin("cafe\u0301", author="li")
    assert dict(weights.snapshot().weights) == {"caf\u00e9": 1.0, "tone": 2.0}


@pytest.mark.parametrize(
    ("name", "shown"),
    [("t\u043ene", r"'t\u043ene'"), ("tone\u200b", r"'tone\u200b'"), ("tone\n", r"'tone\n'")],
)
def test_a_name_that_only_looks_like_a_mounts_is_spelt_out(name: str, shown: str) -> None:
    with pytest.raises(WeightError) as refused:
        store().update({name: 1}, author="li")
    assert shown in refused.value.reasons[name]
    assert "did you mean 'tone'?" in refused.value.reasons[name]
