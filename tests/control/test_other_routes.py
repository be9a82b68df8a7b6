"""Providers, health, and the documents."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core import __version__
from verl_core.control.answers import Health, Providers

Serve = Callable[..., Any]


def test_providers_are_json_whatever_a_mount_says_of_itself(serve: Serve) -> None:
    described = {
        "name": "accuracy",
        "score_range": (-math.inf, 1.0),
        "reads": frozenset({"b", "a"}),
        "path": Path("rules.yaml"),
        "last_error": None,
    }
    found = serve(providers=lambda: [described]).client.get("/api/v1/reward/providers").json()
    Providers.model_validate(found)
    assert (found["run_id"], found["revision"]) == ("demo", 1)
    assert found["providers"] == [
        {
            "name": "accuracy",
            "score_range": [None, 1.0],
            "reads": ["a", "b"],
            "path": "rules.yaml",
            "last_error": None,
        }
    ]


def test_health_tells_run_step_and_version(serve: Serve) -> None:
    found = serve(status=lambda: {"step": 7, "steps": 16}).client.get("/healthz").json()
    Health.model_validate(found)
    assert found == {
        "live": True,
        "ready": True,
        "run_id": "demo",
        "step": 7,
        "version": __version__,
        "steps": 16,
    }


def test_health_is_live_before_it_is_ready(serve: Serve) -> None:
    answer = serve(status=lambda: {"ready": False}).client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json()["ready"] is False


def test_a_status_cannot_rename_the_run(serve: Serve) -> None:
    found = serve(status=lambda: {"run_id": "other", "live": False}).client.get("/healthz").json()
    assert (found["run_id"], found["live"]) == ("demo", True)


def test_a_bug_is_a_500_problem_that_tells_nothing_of_the_inside(serve: Serve) -> None:
    def broken() -> list[dict[str, Any]]:
        raise RuntimeError("inner secret")

    answer = serve(providers=broken).client.get("/api/v1/reward/providers")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "inner secret" not in answer.text


def test_a_client_that_leaves_in_mid_body_is_no_error_of_the_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            b"POST /api/v1/reward/weights HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
    assert server.client.get("/healthz").status_code == 200
    assert server.store.snapshot().revision == 1
    assert caplog.records == []


def test_the_documents_load_nothing_from_elsewhere(serve: Serve) -> None:
    client = serve().client
    page = client.get("/docs")
    assert page.status_code == 200
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {name.rpartition(".")[2] for name in loaded} == {"js", "css", "png"}
    for name in loaded:
        assert "//" not in name
        assert len(client.get(f"/{name}").content) > 1000
    assert "http" not in page.headers["content-security-policy"]
    assert client.get("/docs/core.py").status_code == 404
    assert client.get("/docs/..%2Fcore.py").status_code == 404


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_the_openapi_document_is_whole(serve: Serve) -> None:
    server = serve()
    answer: httpx.Response = server.client.get("/openapi.json")
    document = answer.json()
    assert set(document["paths"]) == {
        "/api/v1/reward/weights",
        "/api/v1/reward/weights/events",
        "/api/v1/reward/weights/history",
        "/api/v1/reward/weights/pins/{name}",
        "/api/v1/reward/weights/rollback",
        "/api/v1/reward/leases",
        "/api/v1/reward/leases/{lease_id}",
        "/api/v1/reward/providers",
        "/api/v1/reward/score",
        "/api/v1/reward/providers/{name}/reload",
        "/api/v1/reward/run",
        "/api/v1/reward/run/correlation",
        "/api/v1/reward/run/samples",
        "/api/v1/reward/run/series",
        "/healthz",
        "/livez",
        "/metrics",
        "/readyz",
    }
    schemas = document["components"]["schemas"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    operations = [op for path in document["paths"].values() for op in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    assert all(operation["description"] for operation in operations)
    problem = document["paths"]["/api/v1/reward/weights"]["post"]["responses"]["422"]
    assert "application/problem+json" in problem["content"]
    assert server.client.get("/openapi.json").json() == document
