"""How a client talks to a control plane: the command line, and workers of other trainers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit

from verl_core.control.token import TOKEN_VARIABLE
from verl_reward_sdk.errors import ConfigError, VerlRewardError

if TYPE_CHECKING:
    import httpx

URL_VARIABLE = "VERL_REWARD_URL"
DEFAULT_URL = "http://127.0.0.1:8000"

_WEIGHTS = "/api/v1/reward/weights"
_PROVIDERS = "/api/v1/reward/providers"
_HEALTH = "/healthz"
_SECONDS, _RELOAD_SECONDS = 10.0, 900.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class NoAnswer(VerlRewardError):
    """No control plane answered, or it failed. `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class ControlClient:
    """One control plane.

    Args:
        url: such as ``http://127.0.0.1:8000``.
        token: sent as a bearer token; by default ``VERL_REWARD_TOKEN``.

    Raises:
        ConfigError: `url` is none; a request was refused (each method).
        NoAnswer: each method.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = _parts_of(url)
        self.url = url.strip().rstrip("/")
        self._is_local = parts.hostname in _LOOPBACK
        self._is_tls = parts.scheme == "https"  # else no certificates need to be read
        token = token or os.environ.get(TOKEN_VARIABLE) or None
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def health(self) -> dict[str, Any]:
        """The run's name, the last trained ``step``, and ``steps`` where the run has an end."""
        return self._ask("GET", _HEALTH)

    def weights(self) -> dict[str, Any]:
        """The weights in force."""
        return self._ask("GET", _WEIGHTS)

    def change(self, changes: Mapping[str, float], headers: Mapping[str, str]) -> dict[str, Any]:
        """Merge `changes` into the weights; gives the weights after it."""
        return self._ask("POST", _WEIGHTS, body=changes, headers=headers)

    def history(self, limit: int) -> dict[str, Any]:
        """The newest `limit` entries of the audit log."""
        return self._ask("GET", f"{_WEIGHTS}/history?limit={limit}")

    def providers(self) -> dict[str, Any]:
        """The mounts and what runs in them."""
        return self._ask("GET", _PROVIDERS)

    def reload(self, name: str) -> dict[str, Any]:
        """Have a mount look at its files; waits for what becomes of it, however long it loads."""
        path = f"{_PROVIDERS}/{quote(name, safe='')}/reload"
        return self._ask("POST", path, body={}, seconds=_RELOAD_SECONDS)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, float] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = _SECONDS,
    ) -> dict[str, Any]:
        import json

        import httpx

        sent = {**self._headers, **(headers or {})}
        content = None
        if body is not None:
            content = json.dumps(body)  # NaN and all: what is a weight is for the server to say
            sent["Content-Type"] = "application/json"
        try:
            # A proxy from the environment has no way to this machine's own loopback.
            with httpx.Client(
                timeout=seconds, trust_env=not self._is_local, verify=self._is_tls
            ) as client:
                answer = client.request(method, self.url + path, content=content, headers=sent)
        except (httpx.InvalidURL, UnicodeError) as error:  # such as a host's name of 100 letters
            raise _no_address(self.url) from error
        except httpx.HTTPError as error:
            raise NoAnswer(
                f"no control plane answers at {self.url}: {error or type(error).__name__}",
                f"start a run, or name its address: --url, or {URL_VARIABLE}",
            ) from error
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.is_success and isinstance(found, dict) and "run_id" in found:
            return found
        if not isinstance(found, dict) or not isinstance(found.get("detail"), str):
            raise NoAnswer(
                f"{self.url} answers (HTTP {answer.status_code}), but not as a control plane",
                f"another program may listen there: name the run's address with --url or"
                f" {URL_VARIABLE}",
            )
        if answer.status_code >= 500:
            raise NoAnswer(f"{self.url} failed: {found['detail']}", "its log says more")
        raise _refusal(answer.status_code, found)


def _parts_of(url: str) -> SplitResult:
    """The parts of a control plane's address; spaces around it do not count.

    Raises:
        ConfigError: it is none.
    """
    url = url.strip()
    try:
        parts = urlsplit(url)
        port = parts.port  # its number is read here, not before
    except ValueError as error:  # an open bracket, a port of letters or above 65535
        raise _no_address(url) from error
    # urlsplit passes over some of what can stand in no address, and takes it out.
    plain = url.isprintable() and not any(c.isspace() or c in '<>"\\^`{|}' for c in url)
    known = parts.scheme in ("http", "https") and parts.hostname
    if not plain or not known or port == 0 or "?" in url or "#" in url:
        raise _no_address(url)
    return parts


def _no_address(url: str) -> ConfigError:
    return ConfigError(
        f"{url!r} is not the address of a control plane",
        path="--url",
        hint=f"it looks like {DEFAULT_URL}, as `verl-reward train` prints it",
    )


def _refusal(status: int, problem: Mapping[str, Any]) -> ConfigError:
    if status == 401:
        return ConfigError(
            "the control plane asks for a token, and this one is missing or wrong",
            hint=f"set {TOKEN_VARIABLE} to the token that the run was started with",
        )
    run = f" by run {problem['run_id']}" if problem.get("run_id") else ""
    errors = problem.get("errors") or []
    lines = [f"  {e.get('key') or e.get('parameter') or 'weights'}: {e['detail']}" for e in errors]
    hint = "`verl-reward weights get` shows what is in force"
    if str(problem.get("type", "")).endswith((":reload-refused", ":unknown-mount")):
        hint = "`verl-reward reload` without a name shows the mounts"
    if not lines:
        return ConfigError(f"refused{run}: {problem['detail']}", hint=hint)
    return ConfigError("\n".join([f"refused{run}, nothing was changed:", *lines]), hint=hint)
