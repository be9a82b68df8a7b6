"""The weights over HTTP, each request by a real client to a real server."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.control.answers import History, ProblemDocument, Weights
from verl_core.rewards.weights import WeightStore

SEED = Path(__file__).resolve().parents[3] / "shared" / "seed" / "listing" / "weights.sh"
JSON = {"Content-Type": "application/json"}
WEIGHTS = "/api/v1/reward/weights"
Serve = Callable[..., Any]


def post(server: Any, body: str | bytes, **headers: str) -> httpx.Response:
    sent = JSON | {name.replace("_", "-"): value for name, value in headers.items()}
    answer: httpx.Response = server.client.post(WEIGHTS, content=body, headers=sent)
    return answer


def get(server: Any) -> httpx.Response:
    answer: httpx.Response = server.client.get(WEIGHTS)
    return answer


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    ProblemDocument.model_validate(document)
    assert document["status"] == status
    assert document["run_id"] == "demo"
    return document


def test_get_names_run_revision_step_and_etag(serve: Serve) -> None:
    server = serve()
    server.store.lease(5)
    answer = get(server)
    assert answer.status_code == 200
    assert answer.headers["etag"] == '"1"'
    assert answer.json() == {
        "run_id": "demo",
        "revision": 1,
        "step": 5,
        "weights": {"accuracy": 1.0, "tone": 1.25, "compliance": 1.0},
        "pinned": [],
        "schedules": {"tone": {"linear": {"from": 2.0, "to": 0.5, "steps": 10, "start": 0}}},
        "effective_step": 0,
    }
    Weights.model_validate(answer.json())


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.skipif(not SEED.exists(), reason="the seed document is not beside the checkout")
def test_the_seed_documents_own_curl_line_changes_the_weights(serve: Serve) -> None:
    server = serve()
    script = SEED.read_text("utf-8")
    assert "localhost:8000" in script
    script = script.replace("localhost:8000", f"localhost:{server.port}")
    ran = subprocess.run(
        ["bash", "-c", script.replace("curl ", "curl -sS --fail-with-body ")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert dict(server.store.snapshot().weights) == {
        "accuracy": 2.0,
        "tone": 1.0,
        "compliance": 0.5,
    }


def test_post_merges_and_answers_with_the_new_etag(serve: Serve) -> None:
    server = serve()
    server.store.lease(3)
    answer = post(server, '{"accuracy": 2}')
    assert answer.status_code == 200
    assert answer.headers["etag"] == '"2"'
    found = answer.json()
    assert found["weights"]["accuracy"] == 2.0
    assert found["weights"]["compliance"] == 1.0
    assert (found["pinned"], found["step"], found["effective_step"]) == (["accuracy"], 4, 4)
    assert get(server).json() == found


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ('{"accuracy": NaN}', {"accuracy"}),
        ('{"accuracy": Infinity}', {"accuracy"}),
        ('{"accuracy": -Infinity}', {"accuracy"}),
        ('{"accuracy": 1e999}', {"accuracy"}),
        ('{"accuracy": 1' + "0" * 5000 + "}", {"accuracy"}),
        ('{"accuracy": -0.1}', {"accuracy"}),
        ('{"accuracy": true}', {"accuracy"}),
        ('{"accuracy": "2"}', {"accuracy"}),
        ('{"accuracy": null}', {"accuracy"}),
        ('{"accuracy": [2]}', {"accuracy"}),
        ('{"accuracy": {"linear": {"from": 1, "to": 2, "steps": 3}}}', {"accuracy"}),
        ('{"acuracy": 2}', {"acuracy"}),
        ('{"guard": 2}', {"guard"}),
        ('{"accuracy": 2, "accuracy": 3}', {"accuracy"}),
        ('{"accuracy": 2, "tone": NaN, "compliance": 0.5}', {"tone"}),
        ('{"accuracy": 0, "tone": 0, "compliance": 0}', {""}),
        ('{"\\ud800": 2}', {"\ud800"}),
        ("{}", {""}),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_refused_change_is_422_with_each_key_and_changes_nothing(
    serve: Serve, body: str, wrong: set[str]
) -> None:
    server = serve()
    before = get(server)
    found = problem(post(server, body), 422)
    assert {error["key"] for error in found["errors"]} == wrong
    after = get(server)
    assert after.json() == before.json()
    assert after.headers["etag"] == before.headers["etag"]
    assert len(server.store.history()) == 1


def test_an_unknown_name_comes_with_the_nearest_and_a_pointer(serve: Serve) -> None:
    (error,) = problem(post(serve(), '{"compli/ance~": 2}'), 422)["errors"]
    assert error["pointer"] == "#/compli~1ance~0"
    assert error["nearest"] == "compliance"
    assert "did you mean 'compliance'" in error["detail"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("{", 400),
        ("accuracy=2", 400),
        ('{"accuracy": 2} {}', 400),
        ("{'accuracy': 2}", 400),
        ('{"accuracy": 0x10}', 400),
        (b"\xef\xbb\xbf{}", 400),
        (b'{"accuracy": "\xff"}', 400),
        ("[" * 100_000, 400),
        ("[]", 422),
        ("2", 422),
        ("null", 422),
    ],
    ids=str,
)
def test_what_is_no_json_object_is_refused(serve: Serve, body: str | bytes, status: int) -> None:
    server = serve()
    problem(post(server, body), status)
    assert server.store.snapshot().revision == 1


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"],
)
def test_a_body_that_is_not_called_json_is_415(serve: Serve, content_type: str) -> None:
    server = serve()
    found = post(server, '{"accuracy": 2}', Content_Type=content_type)
    assert "application/json" in problem(found, 415)["detail"]
    assert server.store.snapshot().revision == 1


def test_a_compressed_body_is_415(serve: Serve) -> None:
    problem(post(serve(), b"\x1f\x8b", Content_Encoding="gzip"), 415)


@pytest.mark.parametrize("tag", ['"1"', "*", '"7", "1"', ', "7" ,,"1",', '"a,b", W/"2", "1"'])
def test_if_match_lets_a_change_of_the_newest_revision_through(serve: Serve, tag: str) -> None:
    assert post(serve(), '{"accuracy": 2}', If_Match=tag).status_code == 200


@pytest.mark.parametrize(
    "tag",
    ['"7"', '"0"', '"01"', '""', 'W/"1"', '"abc"', '"7", "8"', '"1,1"', '"' + "9" * 400 + '"'],
)
def test_a_stale_if_match_is_412_with_the_current_etag(serve: Serve, tag: str) -> None:
    server = serve()
    answer = post(server, '{"accuracy": 2}', If_Match=tag)
    found = problem(answer, 412)
    assert found["revision"] == 1
    assert "the newest is 1" in found["detail"]
    assert "-1" not in found["detail"]
    assert answer.headers["etag"] == '"1"'
    assert server.store.snapshot().revision == 1


@pytest.mark.parametrize(
    "tag", ["newest", "1", "", ",", '"1', '"1" "2"', 'w/"1"', '*, "1"', '"a b"']
)
def test_an_if_match_that_is_no_tag_is_400_and_says_what_to_send(serve: Serve, tag: str) -> None:
    server = serve()
    found = problem(post(server, '{"accuracy": 2}', If_Match=tag), 400)
    assert 'If-Match: "7"' in found["detail"]
    assert found["errors"][0]["parameter"] == "If-Match"
    assert server.store.snapshot().revision == 1


def test_several_if_match_headers_are_one_list(serve: Serve) -> None:
    headers = [("Content-Type", "application/json"), ("If-Match", '"7"'), ("If-Match", '"1"')]
    answer = serve().client.post(WEIGHTS, content='{"accuracy": 2}', headers=headers)
    assert answer.status_code == 200


def test_answers_are_never_304(serve: Serve) -> None:
    answer = serve().client.get(WEIGHTS, headers={"If-None-Match": '"1"', "If-Modified-Since": "x"})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("headers", "author", "reason"),
    [
        ({}, "http", None),
        ({"X-Verl-Author": "li", "X-Verl-Reason": "50% more"}, "li", "50% more"),
        ({"X-Verl-Author": "%E6%9D%8E", "X-Verl-Reason": "a%20b%0Ac"}, "李", "a b\nc"),
    ],
)
def test_who_and_why_come_from_headers(
    serve: Serve, headers: dict[str, str], author: str, reason: str | None
) -> None:
    server = serve()
    assert post(server, '{"accuracy": 2}', **headers).status_code == 200
    entry = server.store.history(1)[0]
    assert (entry.author, entry.reason) == (author, reason)


def test_raw_utf8_in_a_header_is_read_as_curl_sends_it(serve: Serve) -> None:
    server = serve()
    headers = [(b"content-type", b"application/json"), (b"x-verl-author", "李".encode())]
    assert server.client.post(WEIGHTS, content='{"tone": 1}', headers=headers).status_code == 200
    assert server.store.history(1)[0].author == "李"


@pytest.mark.parametrize(
    "headers",
    [{"X-Verl-Author": "%FF"}, {"X-Verl-Author": "a%0Ab"}, {"X-Verl-Reason": "x" * 2001}],
)
def test_an_author_or_reason_that_cannot_be_kept_is_422(
    serve: Serve, headers: dict[str, str]
) -> None:
    server = serve()
    found = problem(post(server, '{"accuracy": 2}', **headers), 422)
    assert found["errors"][0]["parameter"] == next(iter(headers))
    assert server.store.snapshot().revision == 1


def test_the_history_is_newest_first_and_limited(serve: Serve) -> None:
    server = serve()
    for value in (2, 3, 4):
        post(server, f'{{"accuracy": {value}}}', X_Verl_Reason=f"to {value}")
    url = f"{WEIGHTS}/history"
    found = server.client.get(url, params={"limit": 2}).json()
    History.model_validate(found)
    assert [entry["revision"] for entry in found["history"]] == [4, 3]
    assert found["history"][0]["before"] == found["history"][1]["after"]
    assert found["history"][0]["reason"] == "to 4"
    assert len(server.client.get(url).json()["history"]) == 4
    for limit in ("0", "-1", "many"):
        problem(server.client.get(url, params={"limit": limit}), 422)


def test_two_clients_at_once_one_wins_and_nothing_is_mixed(serve: Serve) -> None:
    server = serve()
    start = threading.Barrier(6)
    statuses: list[int] = []

    def write(value: int) -> None:
        body = f'{{"accuracy": {value}, "tone": {value}, "compliance": {value}}}'
        start.wait()
        statuses.append(post(server, body, If_Match='"1"').status_code)

    clients = [threading.Thread(target=write, args=(value,)) for value in range(1, 7)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert sorted(statuses) == [200] + [412] * 5
    assert len(set(get(server).json()["weights"].values())) == 1


def test_a_restart_keeps_weights_and_never_reuses_an_etag(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    first = serve(path=path)
    tags = {post(first, f'{{"accuracy": {value}}}').headers["etag"] for value in (2, 3)}
    first.stop()
    first.store.close()
    second = serve(path=path)
    assert get(second).json()["weights"]["accuracy"] == 3.0
    assert get(second).headers["etag"] == '"3"'
    assert post(second, '{"accuracy": 4}').headers["etag"] not in tags | {'"1"'}


def test_a_change_by_another_process_shows_at_once(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    server = serve(path=path)
    other = WeightStore({"accuracy": 1.0, "tone": 1.0, "compliance": 1.0}, path=path)
    other.update({"accuracy": 7}, author="other")
    assert get(server).json()["weights"]["accuracy"] == 7.0
    other.close()


def test_a_method_that_is_not_there_is_405_and_names_those_that_are(serve: Serve) -> None:
    answer = serve().client.patch(WEIGHTS, content="{}", headers=JSON)
    problem(answer, 405)
    assert answer.headers["allow"] == "GET, HEAD, POST, PUT"


@pytest.mark.parametrize(
    "path", [WEIGHTS, f"{WEIGHTS}/history", "/healthz", "/docs", "/openapi.json"]
)
def test_head_answers_as_get_does_without_the_body(serve: Serve, path: str) -> None:
    client = serve().client
    head, got = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length", "etag", "cache-control"):
        assert head.headers.get(name) == got.headers.get(name)


def test_head_of_nothing_is_404_and_changes_nothing(serve: Serve) -> None:
    server = serve()
    assert server.client.head("/api/v1/reward/wieghts").status_code == 404
    assert server.store.snapshot().revision == 1


def test_a_huge_weight_is_422_and_the_bound_is_in_the_documents(serve: Serve) -> None:
    server = serve()
    assert "1000000" in problem(post(server, '{"accuracy": 1e308}'), 422)["detail"]
    document = server.client.get("/openapi.json").json()
    operation = document["paths"][WEIGHTS]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["additionalProperties"]["maximum"] == 1e6
    assert "a million" in operation["description"]


def test_a_path_that_is_not_there_is_404_and_points_to_the_docs(serve: Serve) -> None:
    assert "/docs" in problem(serve().client.get("/api/v1/reward/wieghts"), 404)["detail"]


def test_a_full_disk_is_500_in_words_and_changes_nothing(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(path=tmp_path / "weights.db")
    server.store._log._connection.execute("PRAGMA max_page_count = 1")
    for value in range(1, 300):
        answer = post(server, f'{{"accuracy": {value}}}', X_Verl_Reason="x" * 1999)
        if answer.status_code != 200:
            break
    assert "nothing was changed" in problem(answer, 500)["detail"]
    assert get(server).json()["weights"]["accuracy"] == value - 1


def test_a_file_that_another_program_holds_is_503_with_a_time_to_come_back(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "weights.db"
    server = serve(path=path, busy_seconds=0.1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answer = post(server, '{"accuracy": 2}')
    assert "another program holds" in problem(answer, 503)["detail"]
    assert int(answer.headers["retry-after"]) > 0
    assert get(server).json()["revision"] == 1  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    assert post(server, '{"accuracy": 2}').status_code == 200
