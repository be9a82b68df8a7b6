"""The server's own life: socket, start, stop, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from verl_core.control import ControlServer, ControlState
from verl_core.rewards.weights import WeightStore
from verl_reward_sdk.errors import ConfigError

Serve = Callable[..., Any]


@pytest.fixture
def state() -> Any:
    store = WeightStore({"a": 1.0}, run_id="mine")
    yield ControlState(run_id="mine", store=store)
    store.close()


def test_a_port_that_another_run_holds_is_refused_and_names_the_run(
    serve: Serve, state: ControlState
) -> None:
    holder = serve()
    with pytest.raises(ConfigError, match="the verl-reward run 'demo' listens there") as refused:
        ControlServer(state, port=holder.port)
    assert refused.value.path == "server.port"
    hint = str(refused.value.hint)
    assert "server.port=" in hint
    free = int(hint.partition("server.port=")[2].partition(",")[0])
    with ControlServer(state, port=free) as other:
        assert other.port == free


def test_a_port_that_another_program_holds_is_refused(state: ControlState) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        thread = threading.Thread(target=lambda: holder.accept()[0].close(), daemon=True)
        thread.start()
        with pytest.raises(ConfigError, match="another program listens there"):
            ControlServer(state, port=holder.getsockname()[1])
        thread.join()


def test_a_holders_token_is_not_asked_around(serve: Serve, state: ControlState) -> None:
    holder = serve(token="secret")
    with pytest.raises(ConfigError, match="asks for a token"):
        ControlServer(state, port=holder.port)


def test_a_port_is_taken_from_the_constructor_on(state: ControlState) -> None:
    first = ControlServer(state, port=0)
    with pytest.raises(ConfigError, match="is taken"):
        ControlServer(state, port=first.port)
    first.stop()
    ControlServer(state, port=first.port).stop()


@pytest.mark.parametrize(
    ("host", "said"),
    [("no such host", "is no address of this machine"), ("192.0.2.1", "VERL_REWARD_TOKEN")],
)
def test_a_host_that_cannot_be_listened_on_is_refused(
    state: ControlState, host: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        ControlServer(state, host=host, port=0)
    assert refused.value.path == "server.host"


def test_an_address_of_another_machine_is_refused() -> None:
    store = WeightStore({"a": 1.0})
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        ControlServer(ControlState(run_id="r", store=store, token="t"), host="192.0.2.1", port=0)
    store.close()


def test_it_answers_when_start_returns_and_frees_the_port_when_stop_does(
    state: ControlState,
) -> None:
    server = ControlServer(state, port=0)
    server.start()
    assert httpx.get(f"{server.url}/healthz", trust_env=False).json()["run_id"] == "mine"
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/healthz", trust_env=False)
    server.stop()  # a second time does nothing
    with ControlServer(state, port=server.port):
        pass


def test_ipv6_loopback_is_served_under_its_own_url(state: ControlState) -> None:
    try:
        server = ControlServer(state, host="::1", port=0)
    except ConfigError:
        pytest.skip("no IPv6 loopback here")
    with server:
        assert server.url == f"http://[::1]:{server.port}"
        assert httpx.get(f"{server.url}/healthz", trust_env=False).status_code == 200


def test_a_request_in_flight_is_answered_when_it_stops() -> None:
    entered = threading.Event()

    def slow() -> list[dict[str, Any]]:
        entered.set()
        time.sleep(0.3)
        return []

    store = WeightStore({"a": 1.0})
    server = ControlServer(ControlState(run_id="r", store=store, providers=slow), port=0)
    server.start()
    statuses: list[int] = []

    def ask() -> None:
        url = f"{server.url}/api/v1/reward/providers"
        statuses.append(httpx.get(url, trust_env=False).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    assert entered.wait(10)
    server.stop()
    asking.join()
    assert statuses == [200]
    store.close()


def test_an_idle_connection_is_closed_when_it_stops(
    state: ControlState, caplog: pytest.LogCaptureFixture
) -> None:
    server = ControlServer(state, port=0)
    server.start()
    with httpx.Client(trust_env=False) as client:
        client.get(f"{server.url}/healthz")  # the connection stays open
        server.stop()
        with pytest.raises(httpx.TransportError):
            client.get(f"{server.url}/healthz")
    assert caplog.records == []  # nothing had to be cancelled


_PROGRAM = """
import signal, sys, threading
from verl_core.control import ControlServer, ControlState
from verl_core.rewards.weights import WeightStore
handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
with ControlServer(ControlState(run_id="r", store=WeightStore({"a": 1.0})), port=0) as server:
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert "torch" not in sys.modules
    try:
        print(server.url, flush=True)
        sys.stdin.read()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_signals_reach_the_main_program_and_nothing_warns() -> None:
    program = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline().startswith("http://")
    program.send_signal(signal.SIGINT)
    said, errors = program.communicate(timeout=30)
    assert (said, errors, program.returncode) == ("interrupted\n", "", 0)


_FORKING = """
import os, sys
from verl_core.control import ControlServer, ControlState
from verl_core.rewards.weights import WeightStore
state = ControlState(run_id="r", store=WeightStore({"a": 1.0}))
server = ControlServer(state, port=0)
server.start()
until, close = os.pipe()
if os.fork() == 0:
    os.close(close)
    os.read(until, 1)  # lives until its parent ends
    os._exit(0)
server.stop()
with ControlServer(state, port=server.port) as again:
    print(again.port == server.port)
os.close(close)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_a_plugin_forks_does_not_hold_the_port() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _FORKING], capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.returncode) == ("True\n", 0), ended.stderr
