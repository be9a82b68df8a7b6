"""The listening socket: only on loopback without a token, and with clear words when it is taken."""

from __future__ import annotations

import errno
import http.client
import ipaddress
import json
import os
import socket
import sys
import weakref

from verl_core.control.token import TOKEN_VARIABLE
from verl_reward_sdk.errors import ConfigError

BACKLOG = 128
_ASK_SECONDS = 1.0

_listening: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    """A process that a plugin forks off must not hold the port after the run has ended."""
    for listener in list(_listening):
        listener.close()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_close_in_child)


def listen(host: str, port: int, *, has_token: bool) -> socket.socket:
    """A TCP socket that listens on ``host:port``.

    Raises:
        ConfigError: as in `ControlServer`; its path is ``server.host`` or ``server.port``.
    """
    family, address = _resolved(host, port)
    if not has_token and not ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
        raise ConfigError(
            f"listening on {host} without a token would let anybody who reaches it turn the knobs",
            path="server.host",
            hint=f"set {TOKEN_VARIABLE} to a secret of your own, or keep server.host=127.0.0.1",
        )
    try:
        return _bound(family, address)
    except OSError as error:
        raise _refused(host, port, error) from error


def adopt(descriptor: int) -> socket.socket:
    """A listening socket that another process has made and handed over."""
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    listener.setblocking(False)
    _listening.add(listener)
    return listener


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host!r} is no address of this machine: {error}",
            path="server.host",
            hint="use 127.0.0.1, an address of this machine, or its name",
        ) from error
    # IPv4 first: `localhost` must mean 127.0.0.1, where clients look.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def _bound(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    # The protocol is named: asyncio turns Nagle's algorithm off only where it is, and an answer in
    # two writes would wait 40 ms for the client's acknowledgement of the first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # there it would let two servers share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # only now is a port that two have bound refused
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    _listening.add(listener)
    return listener


def _refused(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        free = _free_port(host, port)
        return ConfigError(
            f"port {port} on {host} is taken: {_holder(host, port)}",
            path="server.port",
            hint=f"choose another with server.port={free}, or any free one with server.port=0",
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"port {port} may not be opened by this user",
            path="server.port",
            hint="choose one above 1023, such as server.port=8000",
        )
    return ConfigError(
        f"cannot listen on {host}:{port}: {error.strerror or error}",
        path="server.host",
        hint="use 127.0.0.1, or an address of this machine",
    )


def _free_port(host: str, port: int) -> int:
    """The next port that is free now, or 0."""
    for candidate in range(port + 1, min(port + 50, 65536)):
        try:
            _bound(*_resolved(host, candidate)).close()
        except OSError:
            continue
        return candidate
    return 0


def _holder(host: str, port: int) -> str:
    """Who listens there, asked politely and without any token."""
    run = _run_at(host, port)
    if run is None:
        return "another program listens there"
    return f"the verl-reward run {run} listens there"


def _run_at(host: str, port: int) -> str | None:
    asked = "127.0.0.1" if host in ("0.0.0.0", "") else "::1" if host == "::" else host
    connection = http.client.HTTPConnection(asked, port, timeout=_ASK_SECONDS)
    try:
        connection.request("GET", "/healthz")
        found = json.loads(connection.getresponse().read(65536))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    if isinstance(found, dict) and "live" in found and "ready" in found:
        return repr(found["run_id"]) if "run_id" in found else "(it asks for a token)"
    return None


def url_of(host: str, listener: socket.socket) -> str:
    """The URL under which a client of this machine reaches `listener`."""
    port = listener.getsockname()[1]
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
