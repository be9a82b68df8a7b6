"""Changes of the weights as server-sent events, by real clients over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.control.answers import ProblemDocument
from verl_core.control.connection import Limits
from verl_core.control.state import Listening
from verl_core.rewards.weights import WeightStore

WEIGHTS = "/api/v1/reward/weights"
EVENTS = f"{WEIGHTS}/events"
Serve = Callable[..., Any]


class Listener:
    """A client that reads one event after another."""

    def __init__(self, url: str, last: int | str | None = None) -> None:
        self._client = httpx.Client(base_url=url, verify=False, trust_env=False, timeout=60)
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        self._stream = self._client.stream("GET", EVENTS, headers=headers)
        self.answer = self._stream.__enter__()
        self._lines = self.answer.iter_lines() if self.answer.is_success else iter(())

    def block(self) -> dict[str, str]:
        """The fields of the next block; a comment has the name ``""``. Empty at the end."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line:
                return fields
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        return fields

    def event(self) -> dict[str, Any]:
        """The data of the next event, whose id is its revision."""
        while True:
            fields = self.block()
            assert fields, "the stream has ended"
            if "data" in fields:
                found: dict[str, Any] = json.loads(fields["data"])
                assert fields["id"] == str(found["revision"])
                return found

    def revisions(self, count: int) -> list[int]:
        return [self.event()["revision"] for _ in range(count)]

    def close(self) -> None:
        self._stream.__exit__(None, None, None)
        self._client.close()


@pytest.fixture
def listen() -> Iterator[Callable[..., Listener]]:
    listeners: list[Listener] = []

    def start(url: str, last: int | str | None = None) -> Listener:
        listeners.append(Listener(url, last))
        return listeners[-1]

    yield start
    for listener in listeners:
        listener.close()


Listen = Callable[..., Listener]


def test_an_event_is_what_get_answers_and_its_id_the_revision(serve: Serve, listen: Listen) -> None:
    server = serve()
    listener = listen(server.url)
    assert listener.answer.headers["content-type"].startswith("text/event-stream")
    assert listener.answer.headers["cache-control"] == "no-store"
    assert int(listener.block()["retry"]) > 0
    assert listener.event() == server.client.get(WEIGHTS).json()
    server.store.lease(4)
    changed = server.client.post(WEIGHTS, json={"tone": 3}).json()
    assert listener.event() == changed == server.client.get(WEIGHTS).json()
    assert (changed["step"], changed["pinned"]) == (5, ["tone"])


def test_every_kind_of_change_is_an_event(serve: Serve, listen: Listen) -> None:
    server = serve()
    listener, client = listen(server.url), server.client
    assert listener.event()["pinned"] == []
    client.post(WEIGHTS, json={"tone": 3})
    client.put(
        WEIGHTS, json={"tone": 1, "accuracy": 1, "compliance": 1}, headers={"If-Match": '"2"'}
    )
    client.post(f"{WEIGHTS}/rollback", json={"revision": 2})
    client.delete(f"{WEIGHTS}/pins/tone")
    pins = [listener.event()["pinned"] for _ in range(4)]
    assert [len(names) for names in pins] == [1, 3, 1, 0]


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (None, [250]),
        (0, list(range(1, 251))),
        (100, list(range(101, 251))),
        (249, [250]),
        (250, []),
        (10**12, [250]),
        ("", [250]),
    ],
)
def test_a_listener_is_told_all_that_it_missed_and_nothing_twice(
    serve: Serve, listen: Listen, last: Any, told: list[int]
) -> None:
    server = serve()
    for value in range(249):
        server.store.update({"tone": value}, author="t")
    listener = listen(server.url, last)
    assert listener.revisions(len(told)) == told
    server.store.update({"tone": 1}, author="t")
    assert listener.revisions(1) == [251]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "1" * 19, "\xb2"])
def test_an_id_that_was_never_ours_is_422(serve: Serve, last: str) -> None:
    headers = [(b"last-event-id", last.encode())]
    answer = serve().client.get(EVENTS, headers=headers)
    assert answer.status_code == 422
    document = ProblemDocument.model_validate(answer.json())
    assert document.errors is not None
    assert document.errors[0].parameter == "Last-Event-ID"


def test_changes_in_quick_succession_come_all_and_in_order(serve: Serve, listen: Listen) -> None:
    server = serve()
    listeners = [listen(server.url) for _ in range(3)]

    def write(name: str) -> None:
        for value in range(40):
            server.store.update({name: value + 1}, author=name)

    writers = [threading.Thread(target=write, args=(name,)) for name in ("tone", "accuracy")]
    for writer in writers:
        writer.start()
    for listener in listeners:
        first = listener.revisions(1)[0]  # what was the newest when it came
        assert listener.revisions(81 - first) == list(range(first + 1, 82))
    for writer in writers:
        writer.join()


def test_a_change_by_another_process_is_told(serve: Serve, listen: Listen, tmp_path: Path) -> None:
    path = tmp_path / "weights.db"
    server = serve(path=path, listening=Listening(look_seconds=0.02))
    listener = listen(server.url)
    assert listener.revisions(1) == [1]
    script = (
        "import sys; from pathlib import Path; from verl_core.rewards.weights import WeightStore;"
        "store = WeightStore({'accuracy': 1.0, 'tone': 1.0, 'compliance': 1.0}, run_id='demo',"
        " path=Path(sys.argv[1]), shared=True); store.update({'tone': 7}, author='other')"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)
    assert listener.event()["weights"]["tone"] == 7.0


def test_the_revisions_of_another_run_in_the_file_are_none_of_its_events(
    serve: Serve, listen: Listen, tmp_path: Path
) -> None:
    path = tmp_path / "weights.db"
    server = serve(path=path, listening=Listening(look_seconds=0.02))
    listener = listen(server.url, 1)
    other = WeightStore({"x": 1.0}, run_id="another", path=path, shared=True)
    other.update({"x": 2}, author="t")  # revisions 2 and 3
    server.store.update({"tone": 7}, author="t")
    assert listener.revisions(1) == [4]
    other.close()


def test_who_has_nothing_to_hear_is_given_signs_of_life(serve: Serve, listen: Listen) -> None:
    server = serve(listening=Listening(heartbeat_seconds=0.02))
    listener = listen(server.url, 1)
    listener.block()  # how long to wait before the next try
    assert [set(listener.block()) for _ in range(3)] == [{""}] * 3


# -- places ----------------------------------------------------------------------------------------


def full(url: str) -> bool:
    """Whether there is no place for one more listener; the place is given back at once."""
    with httpx.stream("GET", url + EVENTS, trust_env=False, verify=False) as answer:
        assert answer.status_code in (200, 503)
        return bool(answer.status_code == 503)


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds; pytest's own timeout ends a wait in vain."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)


def test_listeners_are_bounded_and_others_are_still_answered(serve: Serve, listen: Listen) -> None:
    server = serve(listening=Listening(listeners=3))
    for _ in range(3):
        assert listen(server.url).revisions(1) == [1]
    late = listen(server.url)
    assert late.answer.status_code == 503
    assert int(late.answer.headers["retry-after"]) > 0
    document = ProblemDocument.model_validate(json.loads(late.answer.read()))
    assert (document.run_id, document.type.split(":")[-1]) == ("demo", "too-many-listeners")
    assert server.client.get(WEIGHTS).status_code == 200


def test_the_places_leave_connections_for_others() -> None:
    assert Listening().listeners <= Limits().connections // 2


_CLIENT = """
import sys, httpx
with httpx.stream("GET", sys.argv[1], trust_env=False, timeout=60) as answer:
    for line in answer.iter_lines():
        if line.startswith("id:"):
            print(line, flush=True)
"""


def test_the_place_of_a_client_that_is_killed_is_free_and_it_resumes(
    serve: Serve, listen: Listen
) -> None:
    server = serve(listening=Listening(listeners=1))
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, server.url + EVENTS], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "id: 1\n"
    assert full(server.url)
    client.send_signal(signal.SIGKILL)
    client.communicate()
    for value in (2, 3):
        server.store.update({"tone": value}, author="t")
    resumed: list[Listener] = []
    until(lambda: bool(resumed.append(listen(server.url, 1)) or resumed[-1].answer.is_success))
    assert resumed[-1].revisions(2) == [2, 3]


def begun(server: Any) -> socket.socket:
    """A bare client that has a place and has heard of the newest revision."""
    while True:
        client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        client.sendall(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        said = b""
        while b"data: " not in said and b"503" not in said:
            said += client.recv(65536)
        if b"data: " in said:
            return client
        client.close()  # the one before has not quite gone


@pytest.mark.parametrize("way", ["close", "reset", "half"])
def test_however_a_client_leaves_its_place_is_free(serve: Serve, way: str) -> None:
    server = serve(listening=Listening(listeners=1))
    for _ in range(5):
        client = begun(server)
        assert full(server.url)
        if way == "half":
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        if way == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        until(lambda: not full(server.url))


def test_a_client_that_does_not_read_is_dropped_and_costs_no_memory(serve: Serve) -> None:
    """Its socket fills up; nothing is queued beyond."""
    long = Listening(listeners=1, heartbeat_seconds=0.001)
    server = serve(listening=long, limits=Limits(stall_seconds=0.3))
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    client.sendall(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    until(lambda: full(server.url))
    ended = threading.Event()

    def write() -> None:
        value = 0
        while not ended.is_set():
            value += 1
            server.store.update({"tone": value % 100 + 1}, author="t")

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: not full(server.url))
    ended.set()
    writer.join()
    client.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_what_is_sent_to_a_machine_that_is_gone_is_given_up_in_time(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    plain = socket.socket.setsockopt

    def noted(self: socket.socket, level: int, name: int, value: Any) -> None:
        plain(self, level, name, value)
        if name == socket.TCP_USER_TIMEOUT:
            seen.append(self.getsockopt(level, name))

    monkeypatch.setattr(socket.socket, "setsockopt", noted)
    server = serve(limits=Limits(stall_seconds=7.0))
    assert server.client.get(WEIGHTS).status_code == 200
    assert set(seen) == {7000}


def test_head_takes_no_place_and_ends(serve: Serve, listen: Listen) -> None:
    server = serve(listening=Listening(listeners=1))
    for _ in range(3):
        answer = server.client.head(EVENTS)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"].startswith("text/event-stream")
    assert listen(server.url).revisions(1) == [1]


def test_a_token_is_asked_for(serve: Serve) -> None:
    server = serve(token="secret")
    assert server.client.get(EVENTS).status_code == 401
    headers = {"Authorization": "Bearer secret"}
    with server.client.stream("GET", EVENTS, headers=headers) as answer:
        assert next(answer.iter_lines()).startswith("retry:")


# -- the end of the server -------------------------------------------------------------------------


def test_the_stop_of_the_server_ends_streams_and_is_not_held_up(
    serve: Serve, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(limits=Limits(grace_seconds=60))  # what would be waited for in vain
    listeners = [listen(server.url) for _ in range(3)]
    for listener in listeners:
        assert listener.revisions(1) == [1]
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    for listener in listeners:
        assert listener.block() == {}
    stopping.join()
    assert caplog.records == []


def test_a_stream_is_not_cut_by_the_limits_of_requests(serve: Serve, listen: Listen) -> None:
    limits = Limits(request_seconds=0.1, stall_seconds=0.1, goodbye_seconds=0.1)
    server = serve(limits=limits, listening=Listening(heartbeat_seconds=0.05))
    listener = listen(server.url)
    assert listener.revisions(1) == [1]
    assert [set(listener.block()) for _ in range(10)] == [{""}] * 10
    server.store.update({"tone": 1}, author="t")
    assert listener.revisions(1) == [2]


_SERVER = """
import sys
from pathlib import Path
from verl_core.control import ControlServer, ControlState
from verl_core.rewards.weights import WeightStore
config = {"accuracy": 1.0, "tone": 1.0, "compliance": 1.0}
store = WeightStore(config, run_id="demo", path=Path(sys.argv[1]), shared=True)
server = ControlServer(ControlState(run_id="demo", store=store), port=int(sys.argv[2]))
server.start()
print(server.port, flush=True)
sys.stdin.read()
"""


class Process:
    """A control plane in a process of its own, which a test may kill."""

    def __init__(self, path: Path, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(path), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "VERL_REWARD_TOKEN"},
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(path: Path, port: int = 0) -> Process:
        started.append(Process(path, port))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.kill()


def test_a_listener_resumes_over_a_killed_server_and_hears_all_once(
    process: Callable[..., Process], listen: Listen, tmp_path: Path
) -> None:
    path = tmp_path / "weights.db"
    first = process(path)
    listener = listen(first.url)
    assert listener.revisions(1) == [1]
    httpx.post(first.url + WEIGHTS, json={"tone": 2}, trust_env=False)
    assert listener.revisions(1) == [2]
    httpx.post(first.url + WEIGHTS, json={"tone": 3}, trust_env=False)
    first.kill()
    with contextlib.suppress(httpx.HTTPError):
        while listener.block():  # revision 3 may have come through, or not
            pass
    second = process(path, first.port)
    again = listen(second.url, 2)
    assert again.revisions(1) == [3]
    httpx.post(second.url + WEIGHTS, json={"tone": 4}, trust_env=False)
    assert again.revisions(1) == [4]


def test_a_kill_in_the_middle_of_requests_reuses_no_etag_and_mixes_nothing(
    process: Callable[..., Process], tmp_path: Path
) -> None:
    path = tmp_path / "weights.db"
    tags: list[str] = []
    for delay in (0.02, 0.05, 0.09):
        server = process(path)
        killer = threading.Timer(delay, server.process.kill)
        killer.start()
        with contextlib.suppress(httpx.HTTPError), httpx.Client(trust_env=False) as client:
            for value in range(1, 1000):
                body = dict.fromkeys(("accuracy", "tone", "compliance"), value)
                answer = client.put(server.url + WEIGHTS, json=body, headers={"If-Match": "*"})
                tags.append(answer.headers["etag"])
        killer.join()
        server.process.communicate()
        store = WeightStore(dict.fromkeys(("accuracy", "tone", "compliance"), 1.0), path=path)
        now = store.snapshot()
        log = store.history()
        store.close()
        assert len(set(now.weights.values())) == 1
        assert [entry.revision for entry in log] == list(range(now.revision, 0, -1))
        assert now.revision >= max((int(tag.strip('"')) for tag in tags), default=1)
    assert len(set(tags)) == len(tags)


def test_two_servers_on_one_file_of_two_writers_one_wins(
    process: Callable[..., Process], tmp_path: Path
) -> None:
    path = tmp_path / "weights.db"
    servers = [process(path), process(path)]
    for round_ in range(1, 11):
        start, statuses = threading.Barrier(2), []

        def write(server: Process, value: int, start: Any = start, got: Any = statuses) -> None:
            body = dict.fromkeys(("accuracy", "tone", "compliance"), value)
            start.wait()
            answer = httpx.post(
                server.url + WEIGHTS,
                json=body,
                headers={"If-Match": f'"{round_}"'},  # noqa: B023
                trust_env=False,
            )
            got.append(answer.status_code)

        writers = [
            threading.Thread(target=write, args=(server, 10 * round_ + number))
            for number, server in enumerate(servers)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert sorted(statuses) == [200, 412]
        found = [httpx.get(server.url + WEIGHTS, trust_env=False).json() for server in servers]
        assert found[0] == found[1]
        assert found[0]["revision"] == round_ + 1
        assert len(set(found[0]["weights"].values())) == 1
