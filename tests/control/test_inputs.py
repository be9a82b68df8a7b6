"""No path and no class name is taken from HTTP: held against every input of every route."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WEIGHTS = "/api/v1/reward/weights"
#: Words in the name of an input that would mean a file, a class or an address to be used.
SUSPECT = re.compile(r"path|file|folder|dir|class|module|import|plugin|url|kwargs|command", re.I)


def inputs(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(operation, name) of every parameter, and every key of every body."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            place = f"{method.upper()} {path}"
            for parameter in operation.get("parameters", ()):
                yield place, parameter["name"]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for key in keys_of(content.get("schema", {}), document):
                    yield place, key


def keys_of(schema: Any, document: dict[str, Any]) -> Iterator[str]:
    if isinstance(schema, list):
        for inner in schema:
            yield from keys_of(inner, document)
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        yield from keys_of(found, document)
    yield from schema.get("properties", {})
    for key in ("properties", "items", "anyOf", "oneOf", "allOf", "additionalProperties"):
        inner = schema.get(key)
        yield from keys_of(
            list(inner.values()) if key == "properties" and inner else inner, document
        )


def test_no_input_of_any_route_is_named_like_a_file_or_a_class(scorer: Callable[..., Any]) -> None:
    found = set(inputs(scorer().client.get("/openapi.json").json()))
    assert {name for _, name in found} >= {"rows", "response", "columns", "name", "lease"}
    assert [one for one in found if SUSPECT.search(one[1])] == []


class Watch:
    """Notes whether a canary is opened or imported. Python cannot take an audit hook back."""

    def __init__(self) -> None:
        self.canary, self.seen = "", list[str]()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.canary and event in ("open", "import", "os.listdir", "exec", "os.system"):
            said = repr(arguments[:1])
            if self.canary in said:
                self.seen.append(f"{event} {said}")


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


def test_names_of_files_and_classes_are_words_wherever_they_stand(
    scorer: Callable[..., Any], watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "canary_module.py").write_text("raise SystemExit('imported')\n", "utf-8")
    (tmp_path / "link_canary").symlink_to("/etc/passwd")
    monkeypatch.syspath_prepend(str(tmp_path))
    server = scorer()
    watch.canary = "canary"
    names = [
        "../canary_module.py",
        "..%2F..%2Fcanary",
        str(tmp_path / "link_canary"),
        "canary_module.Node",
        "file:///canary",
        "${oc.env:canary}",
        "os.system('canary')",
    ]
    told = []
    for name in names:
        client = server.client
        row = {"response": name, "prompt": name, "sample_id": name, "columns": {name: name}}
        told += [
            client.post(f"/api/v1/reward/providers/{name}/reload", json={}),
            client.post("/api/v1/reward/providers/a/reload", json={"path": name}),
            client.post(WEIGHTS, json={name: 1.0}),
            client.post(
                WEIGHTS, json={"a": 1.0}, headers={"X-Verl-Author": name, "X-Verl-Reason": name}
            ),
            client.delete(f"{WEIGHTS}/pins/{name}"),
            client.post("/api/v1/reward/score", json={"rows": [row]}),
            client.post("/api/v1/reward/score", json={"rows": [row], "node_class": name}),
            client.post("/api/v1/reward/leases", json={"run_id": "demo", "group": name}),
            client.post("/api/v1/reward/leases", json={"run_id": name, "group": "g"}),
            client.delete(f"/api/v1/reward/leases/{name}"),
            client.get(f"/docs/{name}"),
            client.get(f"/{name}"),
        ]
    watch.canary = ""
    assert watch.seen == []
    assert max(answer.status_code for answer in told) < 500
    assert not any("root:x:0" in answer.text for answer in told)


def test_a_reload_takes_nothing_but_the_name_of_a_mount(scorer: Callable[..., Any]) -> None:
    server = scorer()
    path = "/api/v1/reward/providers/a/reload"
    answer = server.client.post(path, json={"path": "../other.safetensors"})
    assert answer.status_code in (404, 422)
    assert server.client.get(WEIGHTS).json()["revision"] == 1
