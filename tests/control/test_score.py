"""``POST /api/v1/reward/score`` over real sockets: what it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from control_scoring import INLINE, SCORE, Scorer, fused

from verl_core.control.scoring.admission import ScoringLimits

JSON = {"Content-Type": "application/json"}
Start = Callable[..., Scorer]


# -- answers -------------------------------------------------------------------------------------


def test_components_and_the_fused_reward_come_back_in_order(scorer: Start) -> None:
    answer = scorer().score("abc", "", "de").json()
    assert (answer["run_id"], answer["revision"]) == ("demo", 1)
    assert answer["generations"] == {"a": 1, "b": 1}
    assert answer["weights"] == {"a": 1.0, "b": 2.0}
    assert answer["additive"] is True
    assert [row["fused"] for row in answer["rows"]] == [9.0, 0.0, 6.0]
    assert answer["rows"][0] == {
        "sample_id": "0",
        "fused": 9.0,
        "status": "ok",
        "reason": None,
        "gate": "none",
        "components": {
            "a": {"score": 3.0, "status": "ok"},
            "b": {"score": 3.0, "status": "ok"},
        },
    }


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_any_number_of_rows_is_one_batch(scorer: Start, count: int) -> None:
    responses = [str(number) for number in range(count)]
    assert fused(scorer().score(*responses)) == [3.0 * len(text) for text in responses]


def test_explain_takes_each_row_apart(scorer: Start) -> None:
    row = scorer().score("abc", explain=True).json()["rows"][0]
    mounts = row["explain"]["mounts"]
    assert {name: part["contribution"] for name, part in mounts.items()} == {"a": 3.0, "b": 6.0}


GATED = """
reward:
  - {type: a, plugin: length}
  - {type: guard, plugin: guarding, role: gate, penalty: -5.0}
"""


def test_a_gate_that_failed_blocks_its_row_and_no_other(scorer: Start) -> None:
    rows = scorer(GATED).score("good", "bad", "break").json()["rows"]
    assert [row["fused"] for row in rows] == [4.0, -5.0, None]
    assert [row["status"] for row in rows] == ["ok", "ok", "blocked"]
    assert [row["reason"] for row in rows] == [None, None, "gate failed"]
    assert [row["gate"] for row in rows] == ["none", "veto", "none"]
    assert rows[1]["components"]["guard"]["severity"] == "veto"
    assert rows[2]["components"]["guard"]["status"] == "failed"
    assert rows[2]["components"]["guard"]["reason"] == "it broke"


def test_in_training_such_a_row_is_masked(scorer: Start) -> None:
    rows = scorer(GATED).score("good", "break", training=True).json()["rows"]
    assert [row["status"] for row in rows] == ["ok", "masked"]
    assert rows[1]["fused"] is None


def test_in_training_a_batch_without_a_live_row_is_refused(scorer: Start) -> None:
    answer = scorer(GATED).score("break", training=True)
    assert answer.status_code == 503
    assert "no live row" in answer.json()["detail"]
    assert answer.headers["retry-after"]


MATCH = "reward: [{type: hit, plugin: match}]\n"


def test_an_abstention_is_no_zero(scorer: Start) -> None:
    server = scorer("reward: [{type: hit, plugin: match, missing: mask}]\n")
    rows = [{"response": text, "columns": {"truth": "x", "other": 1}} for text in ("x", "")]
    answer = server.client.post(SCORE, json={"rows": rows}).json()["rows"]
    assert [row["fused"] for row in answer] == [1.0, None]
    assert answer[1]["components"]["hit"] == {"score": None, "status": "abstained"}
    assert (answer[1]["status"], answer[1]["reason"]) == ("masked", "hit abstained")


def test_rows_may_carry_all_that_a_batch_has(scorer: Start) -> None:
    row = {
        "prompt": [{"role": "user", "content": "hi"}],
        "response": "abc",
        "response_raw": "abc<|im_end|>",
        "sample_id": "mine",
        "group": "g",
        "finish_reason": "length",
        "trajectory": [{"role": "user", "content": "hi"}],
        "response_ids": [1, 2],
        "response_mask": [1, 0],
    }
    answer = scorer().client.post(SCORE, json={"rows": [row, {**row, "sample_id": "2"}]})
    assert [one["sample_id"] for one in answer.json()["rows"]] == ["mine", "2"]


# -- refusals: by pointer, nothing is scored -----------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "pointer", "said"),
    [
        ([{"response": "a"}, {"prompt": "p"}], "#/rows/1/response", "required"),
        ([{"response": 3}], "#/rows/0/response", "string"),
        ([{"respons": "a", "response": "b"}], "#/rows/0/respons", "did you mean 'response'"),
        ([{"response": "a", "prompt": 4}], "#/rows/0/prompt", "string"),
        ([{"response": "a", "finish_reason": "done"}], "#/rows/0/finish_reason", "'stop'"),
        ([{"response": "a", "group": 1}, {"response": "b"}], "#/rows/1/group", "in all rows"),
        (
            [{"response": "a", "sample_id": "1"}, {"response": "b"}],
            "#/rows/1/sample_id",
            "also the sample id of row 0",
        ),
        (
            [{"response": "a", "response_ids": [1], "response_mask": [1, 1]}],
            "#/rows/0/response_mask",
            "2 marks for 1",
        ),
        ([{"response": "a", "response_ids": [2**70]}], "#/rows/0/response_ids", "64 bits"),
        ([{"response": "a", "columns": []}], "#/rows/0/columns", "object"),
        (["a"], "#/rows/0", "object"),
        ("a", "#/rows", "array"),
    ],
)
def test_a_wrong_row_refuses_the_request_by_its_pointer(
    scorer: Start, rows: Any, pointer: str, said: str
) -> None:
    server = scorer()
    answer = server.client.post(SCORE, json={"rows": rows})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    found = {error["pointer"]: error["detail"] for error in problem["errors"]}
    assert said in found[pointer]
    assert "Nothing was scored" in problem["detail"]
    assert server.engine.mounts["a"].counters.calls == 0


def test_a_column_that_a_mount_reads_is_asked_for(scorer: Start) -> None:
    rows = [{"response": "a", "columns": {"truth": "a"}}, {"response": "b", "columns": {"trut": 1}}]
    answer = scorer(MATCH).client.post(SCORE, json={"rows": rows})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/rows/1/columns"
    assert "did you mean 'trut'" in answer.json()["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"rows": [{"response": "\xff"}]}', 400),
        (b'{"rows": [{"response": "\\ud800"}]}', 400),
        (b"[]", 422),
        (b"{}", 422),
        (b"[" * 100_000, 400),
    ],
)
def test_a_body_that_is_none_is_refused(scorer: Start, body: bytes, status: int) -> None:
    answer = scorer().client.post(SCORE, content=body, headers=JSON)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_what_is_no_json_is_refused_by_its_name(scorer: Start) -> None:
    server = scorer()
    assert server.client.post(SCORE, content=b"a=b").status_code == 415
    zipped = {**JSON, "Content-Encoding": "gzip"}
    assert server.client.post(SCORE, content=b"{}", headers=zipped).status_code == 415
    assert server.client.get(SCORE).status_code == 405


def test_without_an_engine_there_is_nothing_to_score_with(serve: Callable[..., Any]) -> None:
    assert serve().client.post(SCORE, json={"rows": []}).status_code == 404


def test_while_mounts_load_a_client_is_told_to_come_again(scorer: Start) -> None:
    answer = scorer(status=lambda: {"ready": False}).score("a")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_a_token_is_asked_for(scorer: Start) -> None:
    server = scorer(token="hush")
    assert server.score("a").status_code == 401
    bearer = {"Authorization": "Bearer hush"}
    answer = server.client.post(SCORE, json={"rows": []}, headers=bearer)
    assert answer.status_code == 200


# -- sizes -----------------------------------------------------------------------------------------


def _chunked(server: Scorer, chunks: Iterator[bytes]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest("POST", SCORE)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    try:
        for chunk in chunks:
            connection.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        connection.send(b"0\r\n\r\n")
    except OSError:
        pass  # it reads no more: the answer is there already
    return connection.getresponse()


def test_a_body_beyond_the_limit_is_413_chunked_or_not(scorer: Start) -> None:
    server = scorer(scoring=ScoringLimits(body_bytes=100_000))
    assert server.score("x" * 100_000).status_code == 413
    answer = _chunked(server, iter([b"x" * 10_000] * 100))
    assert answer.status == 413
    assert fused(server.score("abc")) == [9.0]


def test_more_rows_than_may_ever_be_under_way_are_413(scorer: Start) -> None:
    answer = scorer(scoring=ScoringLimits(rows=10)).score(*["a"] * 11)
    assert answer.status_code == 413
    assert "x-ndjson" in answer.json()["detail"]


# -- leases ----------------------------------------------------------------------------------------


def test_a_request_is_a_lease_of_its_own_and_sees_a_change_at_once(scorer: Start) -> None:
    server = scorer()
    server.engine.store.update({"b": 0.0}, author="t")  # type: ignore[union-attr]
    answer = server.score("abc")
    assert (answer.json()["revision"], fused(answer)) == (2, [3.0])


def test_a_group_keeps_its_revision_and_an_ended_lease_is_410(scorer: Start) -> None:
    server = scorer()
    given = server.client.post("/api/v1/reward/leases", json={"run_id": "demo", "group": "g1"})
    assert given.status_code == 201
    lease = given.json()["id"]
    server.engine.store.update({"b": 0.0}, author="t")  # type: ignore[union-attr]
    assert fused(server.score("abc", lease=lease)) == [9.0]
    assert fused(server.score("abc", group="g1")) == [9.0]
    assert fused(server.score("abc", group="g2")) == [3.0]
    assert server.client.delete(f"/api/v1/reward/leases/{lease}").status_code == 204
    assert server.score("abc", lease=lease).status_code == 410
    assert server.score("abc", lease="never").status_code == 404
    assert server.score("abc", lease=lease, group="g1").status_code == 422


# -- many at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [INLINE, "reward: [{type: a, plugin: length, execution: thread}]"])
def test_64_clients_at_once_each_get_their_own_answer(scorer: Start, text: str) -> None:
    server = scorer(text)
    weight = 3.0 if text == INLINE else 1.0

    def ask(number: int) -> bool:
        responses = ["x" * number, "y" * (number + 1)]
        return fused(server.score(*responses)) == [weight * number, weight * (number + 1)]

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(ask, range(512)))


def test_weights_that_change_under_load_never_mix(scorer: Start) -> None:
    server = scorer()
    store = server.engine.store
    assert store is not None
    weights = {1: 2.0}
    ended = threading.Event()

    def ask(_: int) -> list[tuple[int, float]]:
        found = []
        while not ended.is_set():
            answer = server.score(*["a"] * 8).json()
            found += [(answer["revision"], row["fused"]) for row in answer["rows"]]
        return found

    with ThreadPoolExecutor(8) as pool:
        asking = pool.map(ask, range(8))
        for number in range(50):
            after = store.update({"b": float(number)}, author="t")
            weights[after.revision] = float(number)
        ended.set()
        seen = [pair for found in asking for pair in found]
    assert seen
    assert all(reward == 1.0 + weights[revision] for revision, reward in seen)


def test_the_openapi_document_tells_of_both_forms(scorer: Start) -> None:
    document = scorer().client.get("/openapi.json").json()
    post = document["paths"][SCORE]["post"]
    assert set(post["requestBody"]["content"]) == {"application/json", "application/x-ndjson"}
    assert json.dumps(document).count("ScoredRow")
