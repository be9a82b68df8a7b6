"""The store against a plain model of it, over restarts."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from verl_core.rewards.lease_book import LeaseBook, LeaseEnded
from verl_core.rewards.schedules import Linear, Setting, Step, value_at
from verl_core.rewards.weights import StaleRevision, WeightError, WeightStore

CONFIG: dict[str, Setting] = {"a": 1.0, "b": Linear(2.0, 0.5, 6, 1), "c": Step(1.0, ((3, 0.25),))}
good = st.floats(0.01, 100)
bad = st.one_of(
    st.just(float("nan")),
    st.just(float("inf")),
    st.floats(max_value=-1e-9),
    st.booleans(),
    st.text(max_size=3),
    st.none(),
    st.lists(good, max_size=1),
)
names = st.sampled_from(sorted(CONFIG))


@given(
    changes=st.dictionaries(names, good, max_size=3),
    wrong=st.one_of(
        st.tuples(names, bad),
        st.tuples(st.text(max_size=4).filter(lambda n: n not in CONFIG), good),
    ),
)
def test_one_bad_key_changes_nothing(changes: dict[str, float], wrong: tuple[str, Any]) -> None:
    store = WeightStore(CONFIG)
    before = store.snapshot()
    with pytest.raises(WeightError) as refused:
        store.update(changes | {wrong[0]: wrong[1]}, author="t")
    assert set(refused.value.reasons) == {wrong[0]}
    assert store.snapshot() == before
    assert len(store.history()) == 1
    store.close()


class Store(RuleBasedStateMachine):
    """Random changes, leases, rollbacks and restarts; the model is a list of pin maps, and for each
    group the revision and step that its first lease fixed."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.pins: list[dict[str, float]] = [{}]
        self.leases: dict[int, int] = {}
        self.groups: dict[str, tuple[int, int]] = {}
        self.now = 0.0
        self.open()

    def open(self) -> None:
        self.store = WeightStore(CONFIG, run_id="r", path=self.folder / "weights.db")
        self.book = LeaseBook(self.store, ttl=10.0, clock=lambda: self.now)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    @rule(changes=st.dictionaries(names, good, min_size=1), stale=st.booleans())
    def update(self, changes: dict[str, float], stale: bool) -> None:
        newest = len(self.pins)
        if stale:
            with pytest.raises(StaleRevision):
                self.store.update(changes, author="t", if_revision=newest + 1)
            return
        self.store.update(changes, author="t", if_revision=newest)
        self.pins.append(self.pins[-1] | changes)

    @rule(values=st.fixed_dictionaries(dict.fromkeys(CONFIG, good)), without=st.none() | names)
    def put(self, values: dict[str, float], without: str | None) -> None:
        newest = len(self.pins)
        if without is not None:
            rest = {name: value for name, value in values.items() if name != without}
            with pytest.raises(WeightError, match=f"{without}: it is missing"):
                self.store.update(rest, author="t", if_revision=newest, replace=True)
            return
        self.store.update(values, author="t", if_revision=newest, replace=True)
        self.pins.append(values)

    @rule(group=st.sampled_from("xyz"), passes=st.sampled_from((0.0, 3.0, 11.0)), end=st.booleans())
    def lease_group(self, group: str, passes: float, end: bool) -> None:
        """Whatever became of its leases, a group has the revision of its first one."""
        self.now += passes
        given = self.book.give("r", group)
        step = max(self.leases, default=0)
        effective = self.store.history(1)[0].effective_step
        first = self.groups.setdefault(group, (len(self.pins), max(step, effective)))
        assert (given.lease.revision, given.lease.step) == first
        pins = self.pins[first[0] - 1]
        at = {n: pins.get(n, value_at(s, first[1])) for n, s in CONFIG.items()}
        assert self.book.get(given.id).weights == given.lease.weights == at
        if end:
            self.book.end(given.id)
            with pytest.raises(LeaseEnded):
                self.book.get(given.id)

    @rule(name=names)
    def unpin(self, name: str) -> None:
        if name not in self.pins[-1]:
            with pytest.raises(WeightError):
                self.store.unpin(name, author="t")
            return
        self.store.unpin(name, author="t")
        self.pins.append({k: v for k, v in self.pins[-1].items() if k != name})

    @rule(back=st.integers(0, 5))
    def rollback(self, back: int) -> None:
        target = max(1, len(self.pins) - back)
        self.store.rollback(target, author="t")
        self.pins.append(dict(self.pins[target - 1]))

    @rule(ahead=st.integers(1, 3))
    def lease_next(self, ahead: int) -> None:
        step = max(self.leases, default=0) + ahead
        self.leases[step] = len(self.pins)
        self.check_lease(step)

    @rule(choice=st.integers(0, 10))
    def lease_again(self, choice: int) -> None:
        if self.leases:
            self.check_lease(sorted(self.leases)[choice % len(self.leases)])

    def check_lease(self, step: int) -> None:
        lease = self.store.lease(step)
        assert lease.revision == self.leases[step]
        pins = self.pins[lease.revision - 1]
        assert lease.weights == {n: pins.get(n, value_at(s, step)) for n, s in CONFIG.items()}

    @rule()
    def restart(self) -> None:
        before = self.store.snapshot(3)
        self.store.close()
        self.open()
        assert self.store.snapshot(3) == before

    @invariant()
    def the_newest_revision_is_the_models(self) -> None:
        now = self.store.snapshot()
        assert now.revision == len(self.pins)
        assert set(now.pinned) == set(self.pins[-1])
        assert now.step >= now.effective_step

    @invariant()
    def the_audit_log_is_a_chain(self) -> None:
        log = self.store.history()
        assert [entry.revision for entry in log] == list(range(len(self.pins), 0, -1))
        assert all(entry.before == older.after for entry, older in itertools.pairwise(log))
        now = self.store.snapshot()
        assert dict(log[0].weights) == self.store.at(now.revision, now.effective_step).weights
        assert self.store.history(3, before=len(self.pins)) == log[1:4]
        assert [snap.revision for snap in self.store.since(1, 3)] == [
            entry.revision for entry in reversed(log[:-1])
        ][:3]
        effective = [entry.effective_step for entry in log]
        assert effective == sorted(effective, reverse=True)


TestStore = Store.TestCase
TestStore.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
