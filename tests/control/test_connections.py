"""What a client can take of the server: connections, time, bytes, lines of its log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from verl_core.control.connection import Limits

WEIGHTS = "/api/v1/reward/weights"
HEAD = f"POST {WEIGHTS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
BIG = 64 << 20
Serve = Callable[..., Any]


def connect(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def answer_of(connection: socket.socket) -> bytes:
    """One answer, whole, on a connection that stays open."""
    said = b""
    while b"\r\n\r\n" not in said:
        said += connection.recv(65536)
    head, _, body = said.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + body


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes; an error where it does not."""
    parts = []
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def send_without_end(connection: socket.socket, chunk: bytes) -> None:
    for _ in range(256):
        connection.sendall(chunk)


_CROWDED = """
import resource, sys
from verl_core.control import ControlServer, ControlState
from verl_core.rewards.weights import WeightStore
server = ControlServer(ControlState(run_id="demo", store=WeightStore({"accuracy": 1.0})), port=0)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (320, hard))
server.start()
print(server.port, flush=True)
sys.stdin.readline()
files = [open(sys.executable, "rb") for _ in range(20)]
print("the trainer opens its files", flush=True)
for file in files:
    file.close()
sys.stdin.read()
server.stop()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on open files")
def test_a_crowd_of_idle_connections_leaves_the_trainer_its_files() -> None:
    server = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _CROWDED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    port = int(server.stdout.readline())
    crowd = []
    for _ in range(500):
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        with contextlib.suppress(ConnectionError):  # it may have been closed already
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        crowd.append(connection)
    server.stdin.write("\n")
    server.stdin.flush()
    opened = server.stdout.readline()
    for connection in crowd:
        connection.close()
    _, said = server.communicate("")
    assert (opened, said, server.returncode) == ("the trainer opens its files\n", "", 0)


def test_a_connection_too_many_is_closed_and_room_is_made_again(serve: Serve) -> None:
    server = serve(limits=Limits(connections=3))
    held = [connect(server) for _ in range(3)]
    for connection in held:
        connection.sendall(HEALTH + b"\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 200")
    with connect(server) as late:
        assert all_of(late).partition(b"\r\n")[0] == b"HTTP/1.1 503 Service Unavailable"
    held[0].sendall(HEALTH + b"\r\n")  # those that are in are served
    assert answer_of(held[0]).startswith(b"HTTP/1.1 200")
    for connection in held:
        connection.sendall(HEALTH + b"Connection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in all_of(connection)
        connection.close()
    with connect(server) as later:
        later.sendall(HEALTH + b"Connection: close\r\n\r\n")
        assert all_of(later).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "part",
    [b"", b"GET /healthz HTTP/1.1\r\nX: ", HEAD + b"Content-Length: 100\r\n\r\n{"],
    ids=["nothing", "half the headers", "half the body"],
)
def test_a_request_that_does_not_come_whole_in_time_is_dropped(
    serve: Serve, part: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(limits=Limits(request_seconds=0.3))
    with connect(server) as connection:
        connection.sendall(part)
        assert all_of(connection) == b""
    assert caplog.records == []
    assert server.client.get("/healthz").status_code == 200


def test_a_byte_now_and_then_buys_no_time(serve: Serve) -> None:
    server = serve(limits=Limits(request_seconds=0.5))
    ended = threading.Event()
    with connect(server) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")

        def trickle() -> None:
            while not ended.wait(0.05):
                try:
                    connection.sendall(b"1\r\n \r\n")
                except OSError:
                    return

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            assert all_of(connection) == b""
        finally:
            ended.set()
            sender.join()


def test_a_second_request_on_a_connection_has_its_own_time(serve: Serve) -> None:
    server = serve(limits=Limits(request_seconds=0.3))
    with connect(server) as connection:
        for _ in range(8):
            ended = threading.Event()
            connection.sendall(HEALTH + b"\r\n")
            assert answer_of(connection).startswith(b"HTTP/1.1 200")
            ended.wait(0.1)
        connection.sendall(HEALTH)
        assert all_of(connection) == b""


async def _events(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(10):
        await asyncio.sleep(0.1)
        event = f"data: {number}\n\n".encode()
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def test_a_long_answer_is_not_disturbed(serve: Serve) -> None:
    limits = Limits(request_seconds=0.2, stall_seconds=0.2, goodbye_seconds=0.2)
    server = serve(limits=limits, routes={"/events": _events})
    answer = server.client.get("/events/all")
    assert answer.text == "".join(f"data: {number}\n\n" for number in range(10))


class _Big:
    """Sends 64 MiB, and tells when it is rid of them."""

    def __init__(self) -> None:
        self.done = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            body = b"x" * (BIG // 64)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        self.done.set()


def test_a_client_that_does_not_read_its_answer_is_dropped(serve: Serve) -> None:
    app = _Big()
    server = serve(limits=Limits(stall_seconds=0.3), routes={"/big": app})
    with connect(server) as connection:
        connection.sendall(b"GET /big/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert app.done.wait(20)
        assert len(all_of(connection)) < BIG


def test_a_client_that_reads_slowly_gets_it_all(serve: Serve) -> None:
    server = serve(limits=Limits(stall_seconds=0.3), routes={"/big": _Big()})
    taken, pause = 0, threading.Event()
    with server.client.stream("GET", "/big/x") as answer:
        for part in answer.iter_raw(BIG // 16):
            taken += len(part)
            pause.wait(0.05)
    assert taken == BIG


@pytest.mark.parametrize(
    "length", [b"Transfer-Encoding: chunked", b"Content-Length: 9999999999"], ids=str
)
def test_after_413_the_connection_ends_and_no_more_is_read(serve: Serve, length: bytes) -> None:
    server = serve(max_body=1000)
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    with connect(server) as connection:
        connection.sendall(HEAD + length + b"\r\n\r\n" + chunk[:5000])
        said = all_of(connection)
        assert said.startswith(b"HTTP/1.1 413")
        assert b"\r\nconnection: close\r\n" in said.lower()
        with pytest.raises(ConnectionError):
            send_without_end(connection, chunk)
    assert server.client.get("/healthz").status_code == 200


def test_the_body_of_a_refused_request_is_not_read_without_end(serve: Serve) -> None:
    server = serve(token="secret", limits=Limits(unread_bytes=1000))
    with connect(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 9999999999\r\n\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 401")
        with pytest.raises(ConnectionError):
            send_without_end(connection, b"x" * (1 << 20))


def test_a_request_that_is_half_there_does_not_hold_up_the_stop(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    halves = [b"", b"GET /healthz HTTP/1.1\r\nX: ", HEAD + b"Content-Length: 100\r\n\r\n{"]
    connections = [connect(server) for _ in halves]
    for connection, half in zip(connections, halves, strict=True):
        connection.sendall(half)
    assert server.client.get("/healthz").status_code == 200  # what was sent before has come in
    server.stop()
    for connection in connections:
        assert all_of(connection) == b""
        connection.close()
    assert caplog.records == []  # nothing had to be cancelled


async def _hangs(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(3600)


def test_a_request_that_is_cancelled_at_the_stop_prints_no_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(limits=Limits(grace_seconds=1), routes={"/hangs": _hangs})
    with connect(server) as connection:
        connection.sendall(b"GET /hangs/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert server.client.get("/healthz").status_code == 200
        server.stop()
        all_of(connection)
    assert [record.exc_info for record in caplog.records] == [None]
    assert "Cancel 1 running task(s)" in caplog.text


@pytest.mark.parametrize(
    "wrong", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", b"x" * 100_000, b"\r\n \r\n"]
)
def test_what_is_no_http_gets_400_and_no_line_in_the_log(
    serve: Serve, wrong: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    with caplog.at_level(logging.INFO), connect(server) as connection:
        connection.sendall(wrong + b"\r\n\r\n")
        assert all_of(connection).startswith(b"HTTP/1.1 400")
    upgrade = {"Connection": "upgrade", "Upgrade": "websocket"}
    assert httpx.get(f"{server.url}/healthz", headers=upgrade, trust_env=False).is_success
    assert [record for record in caplog.records if "verl" in record.name] == []
    assert [record for record in caplog.records if "uvicorn" in record.name] == []
