"""Host, token and body size: what a request must pass before any route."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.control import ControlServer, ControlState, create_app
from verl_core.control.guard import _host_name
from verl_core.rewards.weights import WeightStore
from verl_reward_sdk.errors import ConfigError, PluginError

WEIGHTS = "/api/v1/reward/weights"
TOKEN = "correct-horse-battery-staple"
Serve = Callable[..., Any]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.2",
        "[::2]",
        "a:b:c",
        "",
    ],
)
@pytest.mark.parametrize("path", [WEIGHTS, "/healthz", "/docs", "/nowhere"])
def test_a_foreign_host_is_refused_everywhere(serve: Serve, host: str, path: str) -> None:
    answer = serve().client.get(path, headers={"Host": host})
    assert answer.status_code == 421
    assert answer.headers["content-type"] == "application/problem+json"
    assert "weights" not in answer.json()


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:99", "[::1]:8000", "[::1]"]
)
def test_loopback_names_are_its_own(serve: Serve, host: str) -> None:
    assert serve().client.get(WEIGHTS, headers={"Host": host}).status_code == 200


def test_this_machines_name_and_configured_names_are_its_own(serve: Serve) -> None:
    server = serve(allowed_hosts=["Rewards.Example"])
    for host in (socket.gethostname(), "rewards.example:443"):
        assert server.client.get(WEIGHTS, headers={"Host": host}).status_code == 200


def test_two_host_headers_are_refused(serve: Serve) -> None:
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            f"GET {WEIGHTS} HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n".encode()
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize(
    ("host", "name"),
    [("A.B:80", "a.b"), ("a.b:", "a.b"), ("[::1]:80", "::1"), ("::1", "::1"), ("x.", "x")],
)
def test_a_hosts_name_is_told_from_its_port(host: str, name: str) -> None:
    assert _host_name(host) == name


def test_without_the_token_nothing_of_the_run_is_told(serve: Serve) -> None:
    server = serve(token=TOKEN)
    for path in (WEIGHTS, f"{WEIGHTS}/history", "/api/v1/reward/providers", "/nowhere"):
        answer = server.client.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
        assert "demo" not in answer.text
    assert server.client.get("/healthz").json() == {"live": True, "ready": True}


@pytest.mark.parametrize(
    "header", [f"Bearer {TOKEN}x", "Bearer", TOKEN, f"Basic {TOKEN}", "Bearer tökén"]
)
def test_a_wrong_token_is_401_and_changes_nothing(serve: Serve, header: str) -> None:
    server = serve(token=TOKEN)
    headers = {"Authorization": header.encode(), "Content-Type": "application/json"}
    answer = server.client.post(WEIGHTS, content='{"accuracy": 2}', headers=headers)
    assert answer.status_code == 401
    assert server.store.snapshot().revision == 1


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_the_token_opens_everything(serve: Serve, scheme: str) -> None:
    server = serve(token=TOKEN)
    headers = {"Authorization": f"{scheme} {TOKEN}"}
    assert server.client.get(WEIGHTS, headers=headers).status_code == 200
    assert server.client.get("/healthz", headers=headers).json()["run_id"] == "demo"


def test_the_token_is_taken_from_the_environment_and_told_nowhere(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VERL_REWARD_TOKEN", TOKEN)
    caplog.set_level(logging.DEBUG)
    server = serve(providers=lambda: 1 / 0)  # a bug, so that the server logs a traceback
    headers = {"Authorization": f"Bearer {TOKEN}"}
    told = server.client.get("/api/v1/reward/providers", headers=headers)
    assert told.status_code == 500
    told_too = server.client.get("/openapi.json")
    assert "HTTPBearer" in told_too.text
    log = "\n".join(logging.Formatter().format(record) for record in caplog.records)
    assert "ZeroDivisionError" in log
    state = ControlState(run_id="demo", store=server.store)
    assert TOKEN not in told.text + told_too.text + log + repr(state)


def test_a_token_that_no_header_can_carry_is_refused_without_telling_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VERL_REWARD_TOKEN", "geheim nis")
    store = WeightStore({"a": 1.0})
    with pytest.raises(ConfigError, match="VERL_REWARD_TOKEN") as refused:
        ControlState(run_id="demo", store=store)
    assert "geheim" not in str(refused.value)
    store.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_loopback_without_a_token_it_refuses_to_start(host: str) -> None:
    store = WeightStore({"a": 1.0})
    if host == "::" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with pytest.raises(ConfigError, match="VERL_REWARD_TOKEN") as refused:
        ControlServer(ControlState(run_id="demo", store=store), host=host, port=0)
    assert refused.value.path == "server.host"
    store.close()


def test_beyond_loopback_with_a_token_it_serves_under_the_address_that_was_called(
    serve: Serve,
) -> None:
    server = serve(host="0.0.0.0", token=TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert server.url.startswith("http://127.0.0.1:")
    # 127.0.0.2 is another address of this machine: right as a Host where it was called.
    url = f"http://127.0.0.2:{server.port}{WEIGHTS}"
    with httpx.Client(verify=False, trust_env=False) as client:
        assert client.get(url).status_code == 401
        assert client.get(url, headers=headers).status_code == 200
        evil = client.get(url, headers=headers | {"Host": "evil.example"})
        assert evil.status_code == 421


def test_a_large_content_length_is_413_before_a_byte_is_read(serve: Serve) -> None:
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            f"POST {WEIGHTS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: 1073741824\r\n\r\n".encode()
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_the_largest_body_that_fits_is_read(serve: Serve) -> None:
    server = serve(max_body=64)
    headers = {"Content-Type": "application/json"}
    fits = '{"accuracy": 2}'.ljust(64)
    assert server.client.post(WEIGHTS, content=fits, headers=headers).status_code == 200
    for body in (fits + " ", iter([fits.encode(), b" "])):  # of known length, and in chunks
        answer = server.client.post(WEIGHTS, content=body, headers=headers)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
    assert server.store.snapshot().revision == 2


_SERVER = """
import sys
from verl_core.control import ControlServer, ControlState
from verl_core.rewards.weights import WeightStore
server = ControlServer(ControlState(run_id="demo", store=WeightStore({"accuracy": 1.0})), port=0)
server.start()
print(server.url, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_chunked_gigabyte_is_413_and_memory_stays_flat() -> None:
    server = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None

    def peak() -> int:
        status = Path(f"/proc/{server.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])  # kB

    url = server.stdout.readline().strip()
    before = peak()
    options = ["-sS", "-X", "POST", "-T", "-", "-H", "Content-Type: application/json"]
    options += ["-w", "\n%{http_code} %{size_upload}"]
    with subprocess.Popen(["head", "-c", "1G", "/dev/zero"], stdout=subprocess.PIPE) as zeros:
        sent = subprocess.run(
            ["curl", *options, f"{url}{WEIGHTS}"],
            stdin=zeros.stdout,
            capture_output=True,
            text=True,
            timeout=120,
        )
    status, uploaded = sent.stdout.splitlines()[-1].split()
    assert status == "413"
    assert int(uploaded) < 64 << 20
    assert peak() - before < 16 << 10
    assert httpx.get(f"{url}{WEIGHTS}", trust_env=False).status_code == 200
    _, said = server.communicate("")
    assert server.returncode == 0
    assert said == ""


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{scope['path']} {size}".encode()})


def test_a_plugins_routes_stand_behind_the_same_guard(serve: Serve) -> None:
    server = serve(token=TOKEN, routes={"/human": _echo}, max_body=1000)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = server.client.post("/human/labels", content=b"12345", headers=headers)
    assert (answer.status_code, answer.text) == (200, "/human/labels 5")
    assert server.client.post("/human/labels", content=b"12345").status_code == 401
    evil = server.client.get("/human/labels", headers=headers | {"Host": "evil.example"})
    assert evil.status_code == 421
    for body in (b"x" * 1001, iter([b"x" * 600] * 2)):
        assert server.client.post("/human/x", content=body, headers=headers).status_code == 413


@pytest.mark.parametrize(
    "prefixes",
    [["human"], ["/"], ["/human/"], [""], ["/healthz"], ["/docs/x"], ["/api"], ["/a", "/a/b"]],
)
def test_a_route_that_would_hide_another_is_refused(prefixes: list[str]) -> None:
    store = WeightStore({"a": 1.0})
    state = ControlState(run_id="demo", store=store, routes=dict.fromkeys(prefixes, _echo))
    with pytest.raises(PluginError, match=r"prefix|hide"):
        create_app(state)
    store.close()
