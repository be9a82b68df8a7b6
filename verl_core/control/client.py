"""How a client talks to a control plane: the command line, and workers of other trainers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit

from verl_core.control.token import READ_TOKEN_VARIABLE, TOKEN_VARIABLE, client_token
from verl_reward_sdk.errors import ConfigError, VerlRewardError

if TYPE_CHECKING:
    import httpx

URL_VARIABLE = "VERL_REWARD_URL"
DEFAULT_URL = "http://127.0.0.1:8000"

_WEIGHTS = "/api/v1/reward/weights"
_LEASES = "/api/v1/reward/leases"
_PROVIDERS = "/api/v1/reward/providers"
_HEALTH = "/healthz"
_SECONDS, _RELOAD_SECONDS = 10.0, 900.0
_SILENCE_SECONDS = 45.0  # three heartbeats of a stream of events
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
        token: sent as a bearer token; by default ``VERL_REWARD_TOKEN``, or else
            ``VERL_REWARD_READ_TOKEN``, which may change nothing.

    Raises:
        ConfigError: `url` is none; a request was refused (each method).
        NoAnswer: each method.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = _parts_of(url)
        self.url = url.strip().rstrip("/")
        self._is_local = parts.hostname in _LOOPBACK
        self._is_tls = parts.scheme == "https"  # else no certificates need to be read
        token = token or client_token()
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

    def replace(self, weights: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """Replace all weights, with ``If-Match`` among `headers`; gives the weights after it."""
        return self._ask("PUT", _WEIGHTS, body=weights, headers=headers)

    def providers(self) -> dict[str, Any]:
        """The mounts and what runs in them."""
        return self._ask("GET", _PROVIDERS)

    def reload(self, name: str) -> dict[str, Any]:
        """Have a mount look at its files; waits for what becomes of it, however long it loads."""
        path = f"{_PROVIDERS}/{quote(name, safe='')}/reload"
        return self._ask("POST", path, body={}, seconds=_RELOAD_SECONDS)

    def rollback(self, revision: int, headers: Mapping[str, str]) -> dict[str, Any]:
        """Make the weights of an old revision a new one; gives the weights after it."""
        body = {"revision": revision}
        return self._ask("POST", f"{_WEIGHTS}/rollback", body=body, headers=headers)

    def unpin(self, name: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """Clear a pin; gives the weights after it."""
        return self._ask("DELETE", f"{_WEIGHTS}/pins/{quote(name)}", headers=headers)

    def history(self, limit: int, before: int | None = None) -> dict[str, Any]:
        """The newest `limit` entries of the audit log, or the newest below revision `before`."""
        below = "" if before is None else f"&before={before}"
        return self._ask("GET", f"{_WEIGHTS}/history?limit={limit}{below}")

    def lease(self, run_id: str, group: str, step: int | None = None) -> dict[str, Any]:
        """The lease on a group of the run: the same for all who ask."""
        body: dict[str, Any] = {"run_id": run_id, "group": group}
        return self._ask("POST", _LEASES, body=body if step is None else body | {"step": step})

    def changes(self, last: int | None = None) -> Iterator[dict[str, Any]]:
        """The weights now and after every change, for as long as the connection holds.

        Args:
            last: the revision that is known: all later ones are given, and not the newest anew.

        Ends when the server ends the stream. Raises `NoAnswer` where the connection is lost.
        """
        import json

        import httpx

        from verl_core.control.sse import data_of

        known = {} if last is None else {"Last-Event-ID": str(last)}
        with self._connection(timeout=httpx.Timeout(_SECONDS, read=_SILENCE_SECONDS)) as client:
            url = f"{self.url}{_WEIGHTS}/events"
            with client.stream("GET", url, headers={**self._headers, **known}) as answer:
                if not answer.is_success or "event-stream" not in answer.headers["content-type"]:
                    answer.read()
                    self._read(answer)
                    raise self._strange(answer)
                for data in data_of(answer.iter_lines()):
                    yield json.loads(data)

    @contextmanager
    def _connection(self, timeout: Any = _SECONDS) -> Iterator[httpx.Client]:
        """A connection for one exchange; raises `ConfigError` and `NoAnswer` where it fails."""
        import httpx

        try:
            # A proxy from the environment has no way to this machine's own loopback.
            with httpx.Client(
                timeout=timeout, trust_env=not self._is_local, verify=self._is_tls
            ) as client:
                yield client
        except (httpx.InvalidURL, UnicodeError) as error:  # such as a host's name of 100 letters
            raise _no_address(self.url) from error
        except httpx.HTTPError as error:
            raise NoAnswer(
                f"no control plane answers at {self.url}: {error or type(error).__name__}",
                f"start a run, or name its address: --url, or {URL_VARIABLE}",
            ) from error

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = _SECONDS,
    ) -> dict[str, Any]:
        import json

        sent = {**self._headers, **(headers or {})}
        content = None
        if body is not None:
            content = json.dumps(body)  # NaN and all: what is a weight is for the server to say
            sent["Content-Type"] = "application/json"
        with self._connection(seconds) as client:
            answer = client.request(method, self.url + path, content=content, headers=sent)
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.is_success and isinstance(found, dict) and "run_id" in found:
            return found
        if not isinstance(found, dict) or not isinstance(found.get("detail"), str):
            raise self._strange(answer)
        if answer.status_code in (429, 503):
            raise NoAnswer(f"{self.url} is busy: {found['detail']}", "try again in a moment")
        if answer.status_code >= 500:
            raise NoAnswer(f"{self.url} failed: {found['detail']}", "its log says more")
        raise _refusal(answer.status_code, found)

    def _strange(self, answer: httpx.Response) -> NoAnswer:
        return NoAnswer(
            f"{self.url} answers (HTTP {answer.status_code}), but not as a control plane",
            f"another program may listen there: name the run's address with --url or"
            f" {URL_VARIABLE}",
        )


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
            hint=f"set {TOKEN_VARIABLE} to the token that the run was started with, or"
            f" {READ_TOKEN_VARIABLE} to look only",
        )
    if status == 403:
        return ConfigError(
            "the control plane was shown the read token, which may change nothing",
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
