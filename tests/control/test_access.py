"""Two tokens: who may do what, held against every route there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from verl_core.control.access import Access, Tokens
from verl_core.control.client import ControlClient
from verl_core.control.token import check_tokens
from verl_reward_sdk.errors import ConfigError

ADMIN, READ = "all-the-knobs", "look-and-score"
OPEN = {"/healthz", "/readyz", "/livez"}
CHANGES = {
    ("POST", "/api/v1/reward/weights"),
    ("PUT", "/api/v1/reward/weights"),
    ("POST", "/api/v1/reward/weights/rollback"),
    ("DELETE", "/api/v1/reward/weights/pins/{name}"),
    ("POST", "/api/v1/reward/providers/{name}/reload"),
}
USES = {
    ("POST", "/api/v1/reward/score"),
    ("POST", "/api/v1/reward/leases"),
    ("DELETE", "/api/v1/reward/leases/{lease_id}"),
}
WEIGHTS = "/api/v1/reward/weights"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def operations(server: Any) -> Iterator[tuple[str, str]]:
    """(method, path) of every route of a server."""
    document = server.client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method in methods:
            yield method.upper(), path


@pytest.fixture
def guarded(scorer: Callable[..., Any]) -> Any:
    return scorer(token=ADMIN, read_token=READ)


def test_every_route_is_of_one_of_three_kinds(guarded: Any) -> None:
    """A new route that changes something must be named here."""
    found = set(operations(guarded))
    assert found >= CHANGES | USES
    rest = found - CHANGES - USES
    assert {method for method, _ in rest} == {"GET"}


def status_of(server: Any, method: str, path: str, token: str | None) -> int:
    """What a route says to a request that is wrong in all but its token."""
    filled = path.replace("{name}", "none").replace("{lease_id}", "none")
    if filled.endswith("/events"):
        method = "HEAD"  # which does not go on for ever
    headers = {} if token is None else bearer(token)
    return int(server.client.request(method, filled, headers=headers).status_code)


def test_each_route_asks_for_the_token_that_the_table_says(guarded: Any) -> None:
    before = guarded.state.store.snapshot()
    for method, path in sorted(operations(guarded)):
        told = [status_of(guarded, method, path, token) for token in (None, "wrong", READ, ADMIN)]
        place = f"{method} {path}: {told}"
        if path in OPEN:
            assert set(told) == {200}, place
            continue
        assert told[:2] == [401, 401], place
        assert (told[2] == 403) == ((method, path) in CHANGES), place
        assert told[2] != 401, place
        assert told[3] not in (401, 403), place
    assert guarded.state.store.snapshot() == before


def test_the_read_token_scores_and_changes_nothing(guarded: Any) -> None:
    rows = {"rows": [{"response": "abc"}]}
    scored = guarded.client.post("/api/v1/reward/score", json=rows, headers=bearer(READ))
    assert scored.json()["rows"][0]["fused"] == 9.0
    refused = guarded.client.post(WEIGHTS, json={"a": 5}, headers=bearer(READ))
    assert refused.status_code == 403
    assert refused.json()["type"].endswith("read-only-token")
    assert "insufficient_scope" in refused.headers["www-authenticate"]
    assert guarded.client.get(WEIGHTS, headers=bearer(READ)).json()["revision"] == 1
    assert guarded.client.post(WEIGHTS, json={"a": 5}, headers=bearer(ADMIN)).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/reward/leases/../weights/pins/a",
        "/api/v1/reward/leases/x/../../weights/pins/a",
        "/api/v1/reward/leases%2F..%2Fweights%2Fpins%2Fa",
        "//api/v1/reward/weights/pins/a",
        "/api/v1/reward/weights/pins/a/",
    ],
)
def test_no_spelling_of_a_path_makes_a_change_of_a_use(guarded: Any, path: str) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=10)
    connection.putrequest("DELETE", path)  # as it stands here: httpx would make it a plain one
    connection.putheader("Authorization", f"Bearer {READ}")
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status in (403, 404)
    assert guarded.state.store.snapshot().revision == 1


def test_routes_of_plugins_change_with_the_token_only(serve: Callable[..., Any]) -> None:
    async def plugin(scope: Any, receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": b"done"})

    server = serve(token=ADMIN, read_token=READ, routes={"/human": plugin})
    assert server.client.get("/human/queue", headers=bearer(READ)).text == "done"
    assert server.client.post("/human/label", headers=bearer(READ)).status_code == 403
    assert server.client.post("/human/label", headers=bearer(ADMIN)).text == "done"


def test_a_client_takes_what_its_environment_has(
    guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="asks for a token") as nothing:
        ControlClient(guarded.url).weights()
    assert "VERL_REWARD_READ_TOKEN" in str(nothing.value.hint)
    monkeypatch.setenv("VERL_REWARD_READ_TOKEN", READ)
    assert ControlClient(guarded.url).weights()["revision"] == 1
    with pytest.raises(ConfigError, match="may change nothing") as refused:
        ControlClient(guarded.url).change({"a": 3.0}, {})
    assert READ not in str(refused.value)
    monkeypatch.setenv("VERL_REWARD_TOKEN", ADMIN)
    assert ControlClient(guarded.url).change({"a": 3.0}, {})["revision"] == 2


@pytest.mark.parametrize(("token", "word"), [(None, "is not"), ("same", "the same")])
def test_a_read_token_that_protects_nothing_is_refused(token: str | None, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as refused:
        check_tokens(token, "same")
    assert refused.value.hint


def test_a_read_token_alone_in_the_environment_refuses_to_start(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_REWARD_READ_TOKEN", "geheimnis")
    with pytest.raises(ConfigError, match="VERL_REWARD_READ_TOKEN") as refused:
        serve()
    assert "geheimnis" not in str(refused.value)


def test_both_comparisons_are_made_whatever_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No early end tells which token was near: the same two, of equal length, for any request."""
    import verl_core.control.access as access

    made: list[tuple[int, int]] = []
    real = access.hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        made.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(access.hmac, "compare_digest", counted)
    for tokens in (Tokens(ADMIN, READ), Tokens(ADMIN, None)):
        for shown in (ADMIN, READ, "", "x" * 10_000, ADMIN[:-1]):
            made.clear()
            tokens.access([f"Bearer {shown}".encode()])
            assert made == [(32, 32), (32, 32)]


def test_of_several_headers_the_best_counts_and_an_unknown_scheme_for_nothing() -> None:
    tokens = Tokens(ADMIN, READ)
    assert tokens.access([f"Bearer {READ}".encode(), f"bearer {ADMIN}".encode()]) is Access.ALL
    assert tokens.access([f"Basic {ADMIN}".encode()]) is Access.NONE
    assert tokens.access([]) is Access.NONE
    assert Tokens(None, None).access([]) is Access.ALL
