"""Leases over HTTP, for the workers of other trainers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.control.answers import LeaseAnswer, ProblemDocument
from verl_core.rewards.lease_book import LeaseBook

LEASES = "/api/v1/reward/leases"
Serve = Callable[..., Any]


def ask(server: Any, body: Any = None, **keys: Any) -> httpx.Response:
    content = json.dumps({"run_id": "demo", "group": "g"} | keys) if body is None else body
    headers = {"Content-Type": "application/json"}
    answer: httpx.Response = server.client.post(LEASES, content=content, headers=headers)
    return answer


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    ProblemDocument.model_validate(document)
    assert document["run_id"] == "demo"
    return document


def test_the_first_asker_fixes_it_and_later_ones_get_the_same(serve: Serve) -> None:
    server = serve()
    first = ask(server, step=5)
    assert first.status_code == 201
    assert first.headers["cache-control"] == "no-store"
    found = first.json()
    LeaseAnswer.model_validate(found)
    assert found == {
        "id": found["id"],
        "run_id": "demo",
        "group": "g",
        "revision": 1,
        "weights": {"accuracy": 1.0, "tone": 1.25, "compliance": 1.0},
        "generations": {},
        "step": 5,
        "expires_in": 3600.0,
    }
    server.store.update({"tone": 9}, author="t")
    again = ask(server, step=6)
    assert (again.status_code, again.json()) == (200, found)
    other = ask(server, group="h").json()
    assert (other["revision"], other["weights"]["tone"]) == (2, 9.0)


def test_a_lease_is_ended_once_and_for_all(serve: Serve) -> None:
    server = serve()
    lease_id = ask(server).json()["id"]
    ended = server.client.delete(f"{LEASES}/{lease_id}")
    assert (ended.status_code, ended.content) == (204, b"")
    found = problem(server.client.delete(f"{LEASES}/{lease_id}"), 410)
    assert found["type"].endswith(":lease-ended")
    problem(server.client.delete(f"{LEASES}/nothing"), 404)
    server.store.update({"tone": 9}, author="t")
    anew = ask(server)
    assert anew.status_code == 201
    assert anew.json()["id"] != lease_id
    assert anew.json()["revision"] == 1  # never under two revisions


def test_the_lease_of_another_run_is_409_and_says_which_run_this_is(serve: Serve) -> None:
    found = problem(ask(serve(), run_id="other"), 409)
    assert "'other'" in found["detail"]
    assert found["run_id"] == "demo"


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        ("{}", {"run_id", "group"}),
        ('{"run_id": "demo"}', {"group"}),
        ('{"run_id": "demo", "group": 7}', {"group"}),
        ('{"run_id": "demo", "group": ""}', {"group"}),
        ('{"run_id": "demo", "group": "' + "x" * 201 + '"}', {"group"}),
        ('{"run_id": "demo", "group": "a\\nb"}', {"group"}),
        ('{"run_id": "demo", "group": "\\ud800"}', {"group"}),
        ('{"run_id": null, "group": "g"}', {"run_id"}),
        ('{"run_id": "demo", "group": "g", "step": -1}', {"step"}),
        ('{"run_id": "demo", "group": "g", "step": true}', {"step"}),
        ('{"run_id": "demo", "group": "g", "step": 1.5}', {"step"}),
        ('{"run_id": "demo", "group": "g", "step": 1e999}', {"step"}),
        ('{"run_id": "demo", "group": "g", "step": 99999999999999999999}', {"step"}),
        ('{"run_id": "demo", "group": "g", "steps": 1}', {"steps"}),
        ('{"run_id": "demo", "group": "g", "group": "h"}', {"group"}),
    ],
    ids=lambda value: (value if isinstance(value, str) else "+".join(sorted(value)))[:60],
)
def test_what_is_no_request_is_422_with_each_key(serve: Serve, body: str, keys: set[str]) -> None:
    found = problem(ask(serve(), body), 422)
    assert {error["key"] for error in found["errors"]} == keys
    assert all(error["pointer"] == f"#/{error['key']}" for error in found["errors"])


def test_an_unknown_key_comes_with_the_nearest(serve: Serve) -> None:
    (error,) = problem(ask(serve(), grop="x"), 422)["errors"]
    assert error["nearest"] == "group"


def test_a_lease_too_many_is_429_with_retry_after(serve: Serve) -> None:
    server = serve(most_leases=2)
    for number in range(2):
        assert ask(server, group=str(number)).status_code == 201
    answer = ask(server, group="one more")
    problem(answer, 429)
    assert int(answer.headers["retry-after"]) > 0
    assert ask(server, group="0").status_code == 200


def test_a_token_is_asked_for(serve: Serve) -> None:
    server = serve(token="secret")
    assert ask(server).status_code == 401
    assert server.client.delete(f"{LEASES}/x").status_code == 401


def test_many_workers_at_once_get_one_lease_of_which_one_is_new(serve: Serve) -> None:
    server, start, got = serve(), threading.Barrier(6), []

    def work() -> None:
        start.wait()
        got.append(ask(server))

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(answer.status_code for answer in got) == [200] * 5 + [201]
    assert len({answer.json()["id"] for answer in got}) == 1


def test_a_lease_outlives_the_server_with_its_id(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    first = serve(path=path)
    given = ask(first, step=3).json()
    first.store.update({"tone": 9}, author="t")
    first.stop()
    second = serve(path=path)
    again = ask(second)
    assert (again.status_code, again.json()) == (200, given)
    assert second.client.delete(f"{LEASES}/{given['id']}").status_code == 204


def test_the_book_is_the_states(serve: Serve) -> None:
    """What scores under a lease finds it where the routes put it."""
    server = serve()
    given = ask(server).json()
    book: LeaseBook = server.state.leases
    assert book.get(given["id"]).revision == 1
