"""Leases of groups: who asks first decides, and what is left of it after an end and a restart."""

from __future__ import annotations

import itertools
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from verl_core.rewards.lease import Lease
from verl_core.rewards.lease_book import (
    LeaseBook,
    LeaseEnded,
    NoLease,
    OtherRun,
    TooManyLeases,
)
from verl_core.rewards.persistence import StoreError
from verl_core.rewards.schedules import Linear
from verl_core.rewards.weights import WeightStore

CONFIG = {"a": 1.0, "b": Linear(2.0, 0.0, 10)}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Mounts:
    """What an engine says of its generations."""

    def __init__(self, **generations: int) -> None:
        self.generations = generations
        self.asked = 0

    def lease(self) -> Lease:
        self.asked += 1
        return Lease(99, {"a": 99.0}, self.generations)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., WeightStore]]:
    stores: list[WeightStore] = []

    def start(path: Path | None = tmp_path / "weights.db") -> WeightStore:
        stores.append(WeightStore(CONFIG, run_id="r", path=path, shared=True))
        return stores[-1]

    yield start
    for store in stores:
        store.close()


def test_the_first_asker_fixes_revision_step_and_generations(
    opened: Callable[..., WeightStore], clock: Clock
) -> None:
    store, mounts = opened(None), Mounts(a=3, b=1)
    book = LeaseBook(store, mounts.lease, clock=clock)
    first = book.give("r", "g", 4)
    assert first.is_new
    assert (first.lease.revision, first.lease.step) == (1, 4)
    assert dict(first.lease.weights) == {"a": 1.0, "b": 1.2}
    assert dict(first.lease.generations) == {"a": 3, "b": 1}
    store.update({"a": 5}, author="t")
    mounts.generations = {"a": 4, "b": 1}
    again = book.give("r", "g", 7)
    assert not again.is_new
    assert (again.id, again.lease) == (first.id, first.lease)
    assert book.get(first.id) == first.lease
    other = book.give("r", "h", 7)
    assert (other.lease.revision, dict(other.lease.generations)) == (2, {"a": 4, "b": 1})
    assert other.id != first.id
    assert mounts.asked == 2  # once a lease that is new


def test_without_a_step_a_group_has_the_step_in_progress_or_the_one_a_change_waits_for(
    opened: Callable[..., WeightStore],
) -> None:
    store = opened(None)
    book = LeaseBook(store)
    store.lease(3)
    assert book.give("r", "before").lease.step == 3
    store.update({"a": 5}, author="t")
    lease = book.give("r", "after").lease
    assert (lease.revision, lease.step) == (2, 4)


def test_a_step_that_the_run_has_leased_itself_is_leased_under_the_same_revision(
    opened: Callable[..., WeightStore],
) -> None:
    store = opened(None)
    book = LeaseBook(store)
    store.lease(3)
    store.update({"a": 5}, author="t")  # in force from step 4 on
    assert book.give("r", "x", 3).lease.revision == 1
    assert book.give("r", "y", 4).lease.revision == 2
    assert book.give("r", "z", 2).lease.revision == 1


def test_another_run_an_unknown_id_and_an_ended_one_are_told_apart(
    opened: Callable[..., WeightStore],
) -> None:
    book = LeaseBook(opened(None))
    with pytest.raises(OtherRun, match="this is run 'r', and the lease is for 's'"):
        book.give("s", "g")
    for use in (book.get, book.end):
        with pytest.raises(NoLease):
            use("nothing")
    lease_id = book.give("r", "g").id
    book.end(lease_id)
    for use in (book.get, book.end):
        with pytest.raises(LeaseEnded, match="it was ended"):
            use(lease_id)


def test_a_lease_that_is_not_used_ends_and_each_use_gives_it_time(
    opened: Callable[..., WeightStore], clock: Clock
) -> None:
    book = LeaseBook(opened(None), ttl=100.0, clock=clock)
    lease_id = book.give("r", "g").id
    for use in itertools.islice(itertools.cycle((book.get, lambda _: book.give("r", "g"))), 4):
        clock.now += 90
        use(lease_id)
    clock.now += 101
    with pytest.raises(LeaseEnded, match="not used for 100 s"):
        book.get(lease_id)


def test_a_group_whose_lease_has_ended_is_leased_anew_under_its_revision(
    opened: Callable[..., WeightStore],
) -> None:
    store, mounts = opened(None), Mounts(a=1)
    book = LeaseBook(store, mounts.lease)
    first = book.give("r", "g", 2)
    store.update({"a": 5}, author="t")
    mounts.generations = {"a": 2}
    book.end(first.id)
    second = book.give("r", "g", 9)
    assert second.is_new
    assert second.id != first.id
    assert (second.lease.revision, second.lease.weights) == (1, first.lease.weights)
    assert second.lease.step == 2
    assert dict(second.lease.generations) == {"a": 2}
    with pytest.raises(LeaseEnded):
        book.get(first.id)


def test_leases_are_bounded_and_unused_ones_make_room(
    opened: Callable[..., WeightStore], clock: Clock
) -> None:
    book = LeaseBook(opened(None), ttl=100.0, limit=2, clock=clock)
    first, second = book.give("r", "1"), book.give("r", "2")
    with pytest.raises(TooManyLeases, match="2 leases live already"):
        book.give("r", "3")
    assert book.give("r", "1").id == first.id  # no new one is needed
    book.end(second.id)
    assert book.give("r", "3").is_new
    clock.now += 60
    book.get(first.id)
    clock.now += 60  # the third was not used for 120 s, the first for 60
    assert book.give("r", "4").is_new
    assert book.get(first.id) == first.lease


def test_many_who_ask_at_once_get_one_lease(opened: Callable[..., WeightStore]) -> None:
    book, start = LeaseBook(opened()), threading.Barrier(8)
    got: list[Any] = []

    def ask() -> None:
        start.wait()
        got.append(book.give("r", "g"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({given.id for given in got}) == 1
    assert [given.is_new for given in got].count(True) == 1


# -- other processes, and restarts -----------------------------------------------------------------


def test_a_lease_goes_on_elsewhere_under_the_generations_it_names(
    opened: Callable[..., WeightStore],
) -> None:
    first = LeaseBook(opened(), Mounts(a=1).lease)
    given = first.give("r", "g", 4)
    other = opened()
    other.update({"a": 5}, author="t")
    second = LeaseBook(other, Mounts(a=1).lease)
    assert second.get(given.id) == given.lease
    assert second.give("r", "g").id == given.id
    second.end(given.id)
    with pytest.raises(LeaseEnded):  # for all who hold it
        first.get(given.id)


def test_a_lease_ends_rather_than_mix_generations(opened: Callable[..., WeightStore]) -> None:
    given = LeaseBook(opened(), Mounts(a=3).lease).give("r", "g")
    after = LeaseBook(opened(), Mounts(a=1).lease)  # numbers begin anew in a new process
    with pytest.raises(LeaseEnded, match=r"generations it began with are gone \(a 3 -> 1\)"):
        after.get(given.id)
    anew = after.give("r", "g")
    assert anew.id != given.id
    assert (anew.lease.revision, dict(anew.lease.generations)) == (1, {"a": 1})


def test_a_use_in_one_process_keeps_the_lease_alive_for_the_other(
    opened: Callable[..., WeightStore], clock: Clock
) -> None:
    first = LeaseBook(opened(), Mounts(a=1).lease, ttl=100.0, clock=clock)
    second = LeaseBook(opened(), Mounts(a=1).lease, ttl=100.0, clock=clock)
    given = first.give("r", "g")
    for _ in range(4):
        clock.now += 60
        second.get(given.id)
    assert first.get(given.id) == given.lease


def test_the_generations_of_a_lease_are_held_as_long_as_it_lives(
    opened: Callable[..., WeightStore], clock: Clock
) -> None:
    mounts = Mounts(a=1)
    book = LeaseBook(opened(None), mounts.lease, ttl=100.0, clock=clock)
    given = book.give("r", "g")
    for generation in (2, 3):
        mounts.generations = {"a": generation}
        clock.now += 90
        assert dict(book.get(given.id).generations) == {"a": 1}


_ASKER = """
import json, sys
from pathlib import Path
from verl_core.rewards.lease_book import LeaseBook
from verl_core.rewards.weights import WeightStore
store = WeightStore({"a": 1.0}, run_id="r", path=Path(sys.argv[1]), shared=True)
book = LeaseBook(store)
print("ready", flush=True)
sys.stdin.readline()
found = {}
for number in range(40):
    store.update({"a": number + 1}, author=sys.argv[2])
    given = book.give("r", f"g{number}")
    found[given.group] = [given.id, given.lease.revision, given.lease.weights["a"]]
print(json.dumps(found), flush=True)
sys.stdin.readline()
"""


def test_two_processes_that_ask_while_weights_change_agree_and_a_kill_loses_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "weights.db"
    askers = [
        subprocess.Popen(
            [sys.executable, "-c", _ASKER, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("x", "y")
    ]
    found: list[Mapping[str, Any]] = []
    for asker in askers:
        assert asker.stdout is not None
        assert asker.stdout.readline() == "ready\n"
    for asker in askers:
        assert asker.stdin is not None
        asker.stdin.write("\n")
        asker.stdin.flush()
    for asker in askers:
        assert asker.stdout is not None
        found.append(json.loads(asker.stdout.readline()))
        asker.kill()
        asker.communicate()
    assert found[0] == found[1]
    store = WeightStore({"a": 1.0}, run_id="r", path=path)
    book = LeaseBook(store)
    for group, (lease_id, revision, weight) in found[0].items():
        lease = book.get(lease_id)
        assert book.give("r", group).id == lease_id
        assert (lease.revision, lease.weights["a"]) == (revision, weight)
    store.close()


# -- the file --------------------------------------------------------------------------------------


def test_a_file_of_before_there_were_group_leases_is_taken_and_gets_them(
    opened: Callable[..., WeightStore], tmp_path: Path
) -> None:
    store = opened()
    store.update({"a": 2}, author="t")
    store.close()
    with sqlite3.connect(tmp_path / "weights.db") as connection:
        connection.execute("DROP TABLE group_leases")
    connection.close()
    assert LeaseBook(opened()).give("r", "g").lease.revision == 2


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE group_leases SET revision = 1",
        "UPDATE group_leases SET step = 7",
        "DELETE FROM group_leases",
    ],
)
def test_what_a_lease_has_fixed_cannot_be_changed(
    opened: Callable[..., WeightStore], tmp_path: Path, statement: str
) -> None:
    LeaseBook(opened()).give("r", "g")
    connection = sqlite3.connect(tmp_path / "weights.db")
    with pytest.raises(sqlite3.IntegrityError, match="never"):
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("generations", ["nothing", "[1]", '{"a": "x"}', "7"])
def test_a_damaged_lease_is_an_error_that_names_the_file(
    opened: Callable[..., WeightStore], tmp_path: Path, generations: str
) -> None:
    book = LeaseBook(opened())
    given = book.give("r", "g")
    connection = sqlite3.connect(tmp_path / "weights.db", isolation_level=None)
    connection.execute("DROP TRIGGER group_leases_are_final")
    connection.execute("UPDATE group_leases SET generations = ?", (generations,))
    connection.close()
    with pytest.raises(StoreError, match=r"weights\.db are damaged: the lease"):
        book.get(given.id)
