"""A lease in several workers: two servers with engines of their own over the same files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_core.rewards.reload.place import LOADING

LEASES = "/api/v1/reward/leases"
Pair = tuple[Any, Any]


def write(path: Path, points: float) -> None:
    """Another rule file in the place of the old one."""
    draft = path.with_name("draft.tmp")
    draft.write_text(f"rules: [{{name: r, contains: x, points: {points}}}]\n", "utf-8")
    os.replace(draft, path)


def taken(server: Any, group: str = "g") -> dict[str, Any]:
    answer = server.client.post(LEASES, json={"run_id": "demo", "group": group})
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


def scored(server: Any, **options: Any) -> tuple[float, dict[str, int]]:
    answer = server.score("x", **options)
    assert answer.status_code == 200, answer.text
    return answer.json()["rows"][0]["fused"], answer.json()["generations"]


@pytest.fixture(params=["blocking", "background"])
def workers(request: Any, scorer: Callable[..., Any], tmp_path: Path) -> Callable[[], Any]:
    """Starts one more worker."""
    write(tmp_path / "tone.yaml", 0.25)
    text = (
        "reward: [{type: tone, plugin: rules, init_kwargs: {rules: tone.yaml},"
        f" reload: {request.param}}}]\n"
    )
    return lambda: scorer(text, path=tmp_path / "weights.db")


def test_a_lease_outlives_a_swap_in_the_worker_that_did_not_give_it(
    workers: Callable[[], Any], tmp_path: Path
) -> None:
    first, second = workers(), workers()
    lease = taken(first)["id"]
    write(tmp_path / "tone.yaml", 0.75)
    for worker in (first, second):
        worker.engine.reload("tone")
        assert scored(worker)[0] == 0.75
    assert scored(first, lease=lease) == (0.25, {"tone": 1})
    assert scored(second, lease=lease) == (0.25, {"tone": 1})


def test_a_worker_that_has_not_looked_yet_scores_under_the_lease_as_it_is(
    workers: Callable[[], Any], tmp_path: Path
) -> None:
    first, second = workers(), workers()
    lease = taken(first)["id"]
    write(tmp_path / "tone.yaml", 0.75)
    assert scored(second, lease=lease) == (0.25, {"tone": 1})
    second.engine.reload("tone")
    assert scored(second, lease=lease) == (0.25, {"tone": 1})


def test_a_worker_that_is_behind_catches_up_and_the_lease_lives(
    workers: Callable[[], Any], tmp_path: Path
) -> None:
    first, second = workers(), workers()
    write(tmp_path / "tone.yaml", 0.75)
    first.engine.reload("tone")
    lease = taken(first)["id"]
    assert scored(second, lease=lease) == (0.75, {"tone": 2})
    assert scored(first, lease=lease) == (0.75, {"tone": 2})


def test_numbers_that_agree_do_not_make_a_generation(
    workers: Callable[[], Any], tmp_path: Path
) -> None:
    first = workers()
    lease = taken(first)["id"]
    write(tmp_path / "tone.yaml", 0.75)
    late = workers()  # in the place of a worker that was killed: its first generation is the new
    assert late.engine.describe()[0]["generation"] == 1
    answer = late.score("x", lease=lease)
    assert answer.status_code == 410
    assert "tone 1 -> 1" in answer.json()["detail"]
    assert first.score("x", lease=lease).status_code == 410  # for all: never a mixture
    assert scored(late, lease=taken(late)["id"])[0] == 0.75


def test_numbers_that_differ_do_not_end_a_lease(workers: Callable[[], Any], tmp_path: Path) -> None:
    first = workers()
    write(tmp_path / "tone.yaml", 0.75)
    first.engine.reload("tone")
    late = workers()
    lease = taken(first)["id"]
    assert scored(late, lease=lease) == (0.75, {"tone": 2})  # the lease's own number
    assert taken(late)["id"] == lease


def test_what_was_held_for_leases_of_others_is_let_go_when_they_have_ended(
    workers: Callable[[], Any], tmp_path: Path
) -> None:
    first, second = workers(), workers()
    for number in range(1, 6):
        lease = taken(first, f"g{number}")["id"]
        write(tmp_path / "tone.yaml", number / 10)
        for worker in (first, second):
            worker.engine.reload("tone")
        assert scored(second, lease=lease)[0] == (0.25 if number == 1 else (number - 1) / 10)
        assert first.client.delete(f"{LEASES}/{lease}").status_code == 204
    # What the last lease held in the second goes with the next swap, what lingers after a while.
    assert len(first.state.leases._held) == 0
    assert len(second.state.leases._held) <= 1


def test_a_lease_that_waits_for_a_load_is_not_ended_by_it(
    workers: Callable[[], Any], tmp_path: Path
) -> None:
    first, second = workers(), workers()
    second.engine._places._wait = 0.05  # as reload_wait would say
    write(tmp_path / "tone.yaml", 0.75)
    first.engine.reload("tone")
    lease = taken(first)["id"]
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with LOADING:  # another mount of this process loads
            held.set()
            free.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    answer = second.score("x", lease=lease)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["type"].endswith(":lease-behind")
    free.set()
    thread.join()
    second.engine.reload("tone")  # waits for it
    assert scored(second, lease=lease) == (0.75, {"tone": 2})


def test_a_lease_given_by_a_worker_that_is_behind_holds_in_one_that_is_ahead(
    workers: Callable[[], Any], tmp_path: Path
) -> None:
    first, second = workers(), workers()
    base = first.engine.lease()  # asked for just before the file is replaced
    write(tmp_path / "tone.yaml", 0.75)
    second.engine.reload("tone")
    book = first.state.leases
    book._engine_lease = lambda: base
    lease = taken(first)["id"]
    assert scored(second, lease=lease) == (0.25, {"tone": 1})
    assert scored(first, lease=lease) == (0.25, {"tone": 1})


def test_what_lingers_for_late_leases_is_let_go(workers: Callable[[], Any], tmp_path: Path) -> None:
    worker = workers()
    worker.state.leases.linger = 0.01
    write(tmp_path / "tone.yaml", 0.75)
    worker.engine.reload("tone")
    while worker.engine.describe()[0]["retired"]:
        time.sleep(0.01)
    assert worker.state.leases._lingering == []
