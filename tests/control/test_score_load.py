"""Scoring under load, and clients that behave badly: what is refused, freed, and never grows."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from control_scoring import NDJSON, SCORE, Scorer, fused

from verl_core.control.connection import Limits
from verl_core.control.scoring.admission import Admission, ScoringLimits

Start = Callable[..., Scorer]
SLOW = "reward: [{type: s, plugin: slow, workers: 8}]\n"


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that, while it is there, keeps `slow` from answering."""
    monkeypatch.chdir(tmp_path)
    hold = tmp_path / "hold"
    hold.touch()
    yield hold
    hold.unlink(missing_ok=True)


def _asked(server: Scorer, count: int = 1, path: str = SCORE) -> list[socket.socket]:
    """Connections that have asked and wait for the answer."""
    body = b'{"rows": [{"response": "0"}]}'
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    found = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        connection.sendall(request)
        found.append(connection)
    return found


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def test_beyond_the_limit_is_429_and_a_place_that_is_free_again_is_given(
    scorer: Start, held: Path
) -> None:
    server = scorer(SLOW, scoring=ScoringLimits(requests=4))
    waiting = _asked(server, 4)
    _until(lambda: server.admission.requests == 4)
    refused = server.score("0")
    assert refused.status_code == 429
    assert refused.json()["type"] == "urn:verl-reward:problem:overloaded"
    assert int(refused.headers["retry-after"]) >= 1
    held.unlink()
    for connection in waiting:
        assert b"200 OK" in connection.recv(4096)
        connection.close()
    assert fused(server.score("0")) == [1.0]


def test_rows_are_counted_over_all_requests(scorer: Start, held: Path) -> None:
    server = scorer(SLOW, scoring=ScoringLimits(rows=10))
    waiting = _asked(server, 4)
    _until(lambda: server.admission.rows == 4)
    assert server.score(*["0"] * 7).status_code == 429
    held.unlink()
    for connection in waiting:
        connection.recv(4096)
        connection.close()
    assert fused(server.score(*["0"] * 10)) == [1.0] * 10


def test_a_client_that_goes_away_frees_its_place(scorer: Start, held: Path) -> None:
    server = scorer(SLOW, scoring=ScoringLimits(requests=4))
    waiting = _asked(server, 4)
    _until(lambda: server.admission.requests == 4)
    for connection in waiting:
        connection.close()
    _until(lambda: server.admission.requests == 0)
    held.unlink()
    assert fused(server.score("0")) == [1.0]


def test_a_client_that_vanishes_in_its_body_leaves_nothing(scorer: Start) -> None:
    server = scorer()
    head = f"POST {SCORE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n"
    for kind in ("application/json", "application/x-ndjson"):
        for length in (1000, 10_000_000):
            connection = socket.create_connection(("127.0.0.1", server.port))
            request = (head % kind).encode() + b"Content-Length: %d\r\n\r\n" % length
            connection.sendall(request + b'{"response": "abc"}\n')
            connection.close()
    assert fused(server.score("abc")) == [9.0]
    _until(lambda: server.admission.requests == 0 and server.admission.bytes == 0)


def test_slow_clients_do_not_keep_others_waiting_and_are_dropped(scorer: Start) -> None:
    limits = Limits(request_seconds=0.5)
    server = scorer(limits=limits, scoring=ScoringLimits(requests=2))
    slow = []
    for _ in range(32):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        head = f"POST {SCORE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")
        slow.append(connection)
    assert fused(server.score("abc")) == [9.0]
    for connection in slow:
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
        connection.close()


def test_the_deadline_is_504_and_the_place_is_free(scorer: Start, held: Path) -> None:
    server = scorer(SLOW, scoring=ScoringLimits(deadline=0.2))
    answer = server.score("0")
    assert answer.status_code == 504
    assert "0.2 s" in answer.json()["detail"]
    assert server.score("0", timeout=0.1).status_code == 504
    assert server.admission.requests == 0


def test_a_probe_is_answered_while_a_large_batch_is_scored(scorer: Start) -> None:
    server = scorer()
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(server.score, *["abc"] * 10_000)
        while not large.done():
            assert server.client.get("/livez").json() == {"ok": True}
        assert fused(large.result()) == [9.0] * 10_000


def test_overload_is_refused_with_flat_memory(scorer: Start, held: Path) -> None:
    server = scorer(SLOW, scoring=ScoringLimits(requests=4))
    waiting = _asked(server, 4)
    _until(lambda: server.admission.requests == 4)
    rows = {"rows": [{"response": "0", "prompt": "p" * 1000}] * 100}

    def flood(count: int) -> None:
        for _ in range(count):
            assert server.client.post(SCORE, json=rows).status_code == 429

    flood(50)
    process = psutil.Process()
    before = process.memory_info().rss
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(flood, [50] * 8))
    assert process.memory_info().rss - before < 32 << 20  # 400 bodies are 40 MiB
    assert server.admission.refused >= 450
    held.unlink()
    for connection in waiting:
        assert b"200 OK" in connection.recv(4096)
        connection.close()


# -- streams ---------------------------------------------------------------------------------------


def _stream(server: Scorer, lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Send while the answer is read, as a stream must be."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest("POST", SCORE)
    connection.putheader("Content-Type", NDJSON["Content-Type"])
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()

    def send() -> None:
        for line in lines:
            connection.send(b"%x\r\n%s\r\n" % (len(line), line))
        connection.send(b"0\r\n\r\n")

    sender = threading.Thread(target=send)
    sender.start()
    answer = connection.getresponse()
    assert answer.status == 200
    for line in answer:
        yield json.loads(line)
    sender.join()
    connection.close()


def _row(**row: Any) -> bytes:
    return json.dumps(row).encode() + b"\n"


def test_50_000_lines_come_back_in_order_with_flat_memory(scorer: Start) -> None:
    server = scorer()
    process = psutil.Process()
    most = before = 0
    padding = "p" * 1000

    def lines() -> Iterator[bytes]:
        for number in range(50_000):
            yield _row(prompt=padding, response="x" * (number % 7))

    for number, row in enumerate(_stream(server, lines())):
        assert row["sample_id"] == str(number + 1)
        assert row["fused"] == 3.0 * (number % 7)
        if number == 2000:
            before = process.memory_info().rss
        elif number % 1000 == 0:
            most = max(most, process.memory_info().rss)
    assert number == 49_999
    assert most - before < 16 << 20  # the body is 50 MiB


def test_a_wrong_line_is_told_in_its_place_and_the_others_are_scored(scorer: Start) -> None:
    server = scorer("reward: [{type: hit, plugin: match}]\n")
    good = {"response": "x", "columns": {"truth": "x"}}
    body = b"".join(
        [
            _row(**good),
            b"\n",
            b"nope\n",
            _row(response="x"),
            _row(**good, sample_id="mine"),
            _row(**good, sample_id="mine"),
            _row(**good, respons="x"),
            json.dumps(good).encode(),  # without a line's end
        ]
    )
    found = server.lines(body)
    places = [row.get("sample_id", row.get("line")) for row in found]
    assert places == ["1", 3, 4, "mine", 6, 7, "8"]
    errors = {row["line"]: row["error"] for row in found if "error" in row}
    assert errors[3]["status"] == 400
    assert errors[4]["errors"][0]["pointer"] == "#/columns"
    assert "there is no 'truth', which a mount reads" in errors[4]["detail"]
    assert errors[6]["errors"][0]["pointer"] == "#/sample_id"
    assert "did you mean 'response'" in errors[7]["detail"]


def test_a_stream_is_one_lease(scorer: Start) -> None:
    server = scorer(scoring=ScoringLimits(slice_rows=10))
    store = server.engine.store
    assert store is not None
    has_begun = threading.Event()

    def lines() -> Iterator[bytes]:
        for number in range(100):
            if number == 50:
                assert has_begun.wait(30)
                store.update({"b": 0.0}, author="t")
            yield _row(response="a")

    found = []
    for row in _stream(server, lines()):
        has_begun.set()
        found.append(row["fused"])
    assert found == [3.0] * 100
    assert fused(server.score("a")) == [1.0]


def test_a_group_is_never_cut_apart(scorer: Start) -> None:
    text = "reward: [{type: a, plugin: length, normalize: group}]\n"
    server = scorer(text, scoring=ScoringLimits(slice_rows=4))
    body = b"".join(_row(response="x" * (i % 3), group=str(i // 3)) for i in range(30))
    found = server.lines(body)
    expected = [found[i]["fused"] for i in range(3)]
    assert len(set(expected)) == 3
    assert [row["fused"] for row in found] == expected * 10


def test_what_needs_all_rows_at_once_is_no_stream(scorer: Start) -> None:
    server = scorer("reward: [{type: a, plugin: length, normalize: batch}]\n")
    answer = server.client.post(SCORE, content=_row(response="a"), headers=NDJSON)
    assert answer.status_code == 422
    assert "one application/json body" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("explain=maybe", "explain"),
        ("timeout=soon", "timeout"),
        ("timeout=-1", "timeout"),
        ("rows=3", "rows"),
    ],
)
def test_a_wrong_query_is_refused_before_a_line_is_read(
    scorer: Start, query: str, said: str
) -> None:
    answer = scorer().client.post(f"{SCORE}?{query}", content=b"", headers=NDJSON)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == said


def test_an_empty_stream_has_an_empty_answer_that_names_the_lease(scorer: Start) -> None:
    answer = scorer().client.post(f"{SCORE}?explain", content=b"\n\n", headers=NDJSON)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["x-verl-revision"] == "1"
    assert json.loads(answer.headers["x-verl-generations"]) == {"a": 1, "b": 1}


def test_a_line_of_a_gigabyte_is_no_memory(scorer: Start) -> None:
    server = scorer()
    process = psutil.Process()
    before = process.memory_info().rss

    def lines() -> Iterator[bytes]:
        yield _row(response="a")
        block = b"x" * (1 << 20)
        for _ in range(256):
            yield block
        yield b"\n"
        yield _row(response="b")

    first, long, last = _stream(server, lines())
    assert (first["sample_id"], last["sample_id"]) == ("1", "3")
    assert (long["line"], long["error"]["status"]) == (2, 413)
    assert process.memory_info().rss - before < 64 << 20


def test_a_slow_stream_is_awaited_as_long_as_it_moves(scorer: Start) -> None:
    server = scorer(limits=Limits(request_seconds=0.3))

    def lines() -> Iterator[bytes]:
        for _ in range(8):
            time.sleep(0.1)
            yield _row(response="a")

    assert len(list(_stream(server, lines()))) == 8


def test_a_stream_that_stands_still_is_dropped(scorer: Start) -> None:
    server = scorer(limits=Limits(request_seconds=0.2))
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = f"POST {SCORE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    connection.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")
    connection.settimeout(30)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):  # until it is closed, or 30 s have passed
            pass
    connection.close()


def test_retry_after_is_what_is_under_way_over_the_rate() -> None:
    now = [0.0]
    admission = Admission(ScoringLimits(requests=2, rows=1000), clock=lambda: now[0])
    assert admission.retry_after() == 1
    with admission.enter() as place:
        place.take(100)
        now[0] = 2.0
    now[0] = 4.0
    assert admission.rate == pytest.approx(50.0)  # 100 rows in the 2 s since they ended
    held = admission.enter()
    held.take(500)
    assert admission.retry_after() == 10
    now[0] = 20.0
    assert (admission.rate, admission.retry_after()) == (0.0, 1)
