"""PUT, rollback, pins and the pages of the history, by a real client to a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from verl_core.control import ControlServer, ControlState
from verl_core.control.answers import History, ProblemDocument, Weights
from verl_core.rewards.schedules import Linear
from verl_core.rewards.weights import WeightStore

JSON = {"Content-Type": "application/json"}
WEIGHTS = "/api/v1/reward/weights"
ROLLBACK = f"{WEIGHTS}/rollback"
HISTORY = f"{WEIGHTS}/history"
ALL = {"accuracy": 2, "tone": 0.5, "compliance": 3}
Serve = Callable[..., Any]


def send(server: Any, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    content = body if isinstance(body, str | bytes | None) else json.dumps(body)
    answer: httpx.Response = server.client.request(
        method, path, content=content, headers=sent if content is None else JSON | sent
    )
    return answer


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    ProblemDocument.model_validate(document)
    assert document["run_id"] == "demo"
    return document


def newest(server: Any) -> int:
    revision: int = server.store.snapshot().revision
    return revision


# -- PUT -------------------------------------------------------------------------------------------


def test_put_replaces_all_and_pins_all(serve: Serve) -> None:
    server = serve()
    answer = send(
        server, "PUT", WEIGHTS, ALL, If_Match='"1"', X_Verl_Author="li", X_Verl_Reason="as in git"
    )
    assert answer.status_code == 200
    assert answer.headers["etag"] == '"2"'
    found = answer.json()
    Weights.model_validate(found)
    assert (found["weights"], found["pinned"]) == (ALL, list(ALL))
    assert send(server, "GET", WEIGHTS).json() == found
    entry = server.store.history(1)[0]
    assert (entry.author, entry.reason) == ("li", "as in git")


def test_put_without_if_match_is_428_with_the_etag_to_send(serve: Serve) -> None:
    server = serve()
    answer = send(server, "PUT", WEIGHTS, ALL)
    found = problem(answer, 428)
    assert found["type"].endswith(":if-match-required")
    assert found["errors"][0]["parameter"] == "If-Match"
    assert answer.headers["etag"] == '"1"'
    assert newest(server) == 1
    assert send(server, "PUT", WEIGHTS, ALL, If_Match=answer.headers["etag"]).status_code == 200


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"accuracy": 2, "tone": 1}, {"compliance": "it is missing"}),
        ({**ALL, "complience": 1}, {"complience": "did you mean 'compliance'?"}),
        (
            {"accuracy": 2, "tone": 1, "complience": 1},
            {"complience": "did you mean 'compliance'?", "compliance": "it is missing"},
        ),
        ({**ALL, "guard": 1}, {"guard": "it is a gate"}),
        ({**ALL, "tone": -1}, {"tone": "below 0"}),
        ('{"accuracy": 2, "tone": NaN, "compliance": 1}', {"tone": "NaN"}),
        ('{"accuracy": 1, "tone": 1, "compliance": 1, "tone": 1}', {"tone": "given twice"}),
        (dict.fromkeys(ALL, 0), {"": "every weight would be 0"}),
        ({}, {"": "no weight was given"}),
    ],
    ids=str,
)
def test_a_map_that_is_not_whole_or_not_right_is_422_and_changes_nothing(
    serve: Serve, body: Any, wrong: dict[str, str]
) -> None:
    server = serve()
    found = problem(send(server, "PUT", WEIGHTS, body, If_Match='"1"'), 422)
    said = {error["key"]: error["detail"] for error in found["errors"]}
    assert set(said) == set(wrong)
    for key, text in wrong.items():
        assert text.lower() in said[key].lower()
    assert newest(server) == 1


@pytest.mark.parametrize(("tag", "status"), [('"7"', 412), ('W/"1"', 412), ("1", 400), ("*", 200)])
def test_put_goes_by_if_match(serve: Serve, tag: str, status: int) -> None:
    server = serve()
    assert send(server, "PUT", WEIGHTS, ALL, If_Match=tag).status_code == status
    assert newest(server) == (2 if status == 200 else 1)


def test_of_several_who_put_at_once_one_wins(serve: Serve) -> None:
    server, start, statuses = serve(), threading.Barrier(5), []

    def put(value: int) -> None:
        start.wait()
        body = dict.fromkeys(ALL, value)
        statuses.append(send(server, "PUT", WEIGHTS, body, If_Match='"1"').status_code)

    clients = [threading.Thread(target=put, args=(value,)) for value in range(1, 6)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert sorted(statuses) == [200] + [412] * 4
    assert len(set(server.store.snapshot().weights.values())) == 1
    assert newest(server) == 2


# -- rollback --------------------------------------------------------------------------------------


def test_rollback_is_a_new_revision_with_the_pins_of_then(serve: Serve) -> None:
    server = serve()
    send(server, "POST", WEIGHTS, {"tone": 1})
    send(server, "POST", WEIGHTS, {"accuracy": 9, "tone": 4})
    answer = send(server, "POST", ROLLBACK, {"revision": 2}, X_Verl_Reason="worse")
    assert (answer.status_code, answer.headers["etag"]) == (200, '"4"')
    found = answer.json()
    assert (found["weights"]["tone"], found["pinned"]) == (1.0, ["tone"])
    back = send(server, "POST", ROLLBACK, {"revision": 1}).json()
    assert (back["revision"], back["pinned"]) == (5, [])
    reasons = [entry.reason for entry in server.store.history(2)]
    assert reasons == ["rollback to revision 1", "rollback to revision 2: worse"]


@pytest.mark.parametrize(
    ("body", "key", "said"),
    [
        ({"revision": 9}, "revision", "the newest is 2, the oldest 1"),
        ({"revision": 0}, "revision", "the newest is 2"),
        ({"revision": -1}, "revision", "the newest is 2"),
        ('{"revision": 1' + "0" * 30 + "}", "revision", "the newest is 2"),
        ('{"revision": 1' + "0" * 400 + "}", "revision", "whole number"),
        ({"revision": True}, "revision", "whole number"),
        ({"revision": "1"}, "revision", "whole number"),
        ({"revision": 1.5}, "revision", "whole number"),
        ({"revision": None}, "revision", "whole number"),
        ({}, "revision", "missing"),
        ({"revision": 1, "reason": "x"}, "reason", "no such key"),
        ('{"revision": 1, "revision": 2}', "revision", "twice"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_rollback_to_nowhere_is_422_with_the_bounds(
    serve: Serve, body: Any, key: str, said: str
) -> None:
    server = serve()
    send(server, "POST", WEIGHTS, {"tone": 1})
    (error,) = problem(send(server, "POST", ROLLBACK, body), 422)["errors"]
    assert (error["key"], error["pointer"]) == (key, f"#/{key}")
    assert said in error["detail"]
    assert newest(server) == 2


def test_a_rollback_goes_by_if_match_where_there_is_one(serve: Serve) -> None:
    server = serve()
    send(server, "POST", WEIGHTS, {"tone": 1})
    answer = send(server, "POST", ROLLBACK, {"revision": 1}, If_Match='"1"')
    problem(answer, 412)
    assert answer.headers["etag"] == '"2"'
    assert send(server, "POST", ROLLBACK, {"revision": 1}, If_Match='"2"').status_code == 200


# -- pins ------------------------------------------------------------------------------------------


def test_a_pin_that_is_deleted_lets_the_schedule_show(serve: Serve) -> None:
    server = serve()
    send(server, "POST", WEIGHTS, {"tone": 9, "accuracy": 3})
    answer = send(server, "DELETE", f"{WEIGHTS}/pins/tone", X_Verl_Author="li", X_Verl_Reason="ok")
    assert (answer.status_code, answer.headers["etag"]) == (200, '"3"')
    found = answer.json()
    assert (found["weights"]["tone"], found["pinned"]) == (2.0, ["accuracy"])
    entry = server.store.history(1)[0]
    assert (entry.author, entry.reason) == ("li", "ok")
    problem(send(server, "DELETE", f"{WEIGHTS}/pins/tone"), 404)
    assert newest(server) == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("accuracy", "it is not pinned"),
        ("toen", "did you mean 'tone'?"),
        ("guard", "it is a gate"),
        ("a%2Fb", "a/b: no mount has this name"),
        ("", "no mount has this name"),
    ],
)
def test_where_there_is_no_pin_it_is_404_with_the_reason(
    serve: Serve, name: str, said: str
) -> None:
    server = serve()
    assert said in problem(send(server, "DELETE", f"{WEIGHTS}/pins/{name}"), 404)["detail"]
    assert newest(server) == 1


def test_a_pin_goes_by_if_match_where_there_is_one(serve: Serve) -> None:
    server = serve()
    send(server, "POST", WEIGHTS, {"tone": 9})
    problem(send(server, "DELETE", f"{WEIGHTS}/pins/tone", If_Match='"1"'), 412)
    assert send(server, "DELETE", f"{WEIGHTS}/pins/tone", If_Match='"2"').status_code == 200


def test_a_pin_without_which_all_would_be_0_stays() -> None:
    store = WeightStore({"tone": Linear(1.0, 0.0, 3)}, run_id="demo", allow_zero=True)
    store.update({"tone": 1}, author="t")

    def refuse_zero(weights: Mapping[str, float]) -> None:
        if not any(weights.values()):
            raise ValueError("nothing would be left")

    store.require(refuse_zero)
    with ControlServer(ControlState(run_id="demo", store=store), port=0) as server:
        answer = httpx.delete(f"{server.url}{WEIGHTS}/pins/tone", trust_env=False)
        assert "at step 3: nothing would be left" in problem(answer, 422)["detail"]
    assert store.snapshot().pinned == ("tone",)
    store.close()


# -- history ---------------------------------------------------------------------------------------


def test_the_history_is_read_page_by_page_while_it_grows(serve: Serve) -> None:
    server = serve()
    for value in range(1, 7):
        send(server, "POST", WEIGHTS, {"tone": value}, X_Verl_Author=f"author {value}")
    pages, before = [], None
    for _ in range(10):
        params = {"limit": 3} | ({} if before is None else {"before": before})
        found = server.client.get(HISTORY, params=params).json()
        History.model_validate(found)
        if not found["history"]:
            break
        pages.append([entry["revision"] for entry in found["history"]])
        before = pages[-1][-1]
        send(server, "POST", WEIGHTS, {"accuracy": before})  # what is new is on no later page
    assert pages == [[7, 6, 5], [4, 3, 2], [1]]
    for wrong in ("0", "-1", "x", str(2**70)):
        problem(server.client.get(HISTORY, params={"before": wrong}), 422)
