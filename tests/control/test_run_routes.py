"""``/api/v1/reward/run``: over a real socket, out of a real folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_core.control.run import RunFiles
from verl_core.control.run_answers import Correlations, RunFacts, Samples, Steps

Serve = Callable[..., Any]
RUN = "/api/v1/reward/run"


def write(path: Path, records: list[dict[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def step(number: int, tone: float = 0.5) -> dict[str, Any]:
    return {
        "step": number,
        "reward/accuracy/mean": 0.25,
        "reward/tone/mean": tone,
        "weights/accuracy": 1.0,
        "weights/tone": 1.0,
        "weights/revision": 1.0,
        "actor/kl": None,
        "time": "2026-01-01T00:00:00Z",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "metrics.jsonl", [step(number) for number in range(1, 4)])
    explain = {"fused": 0.5, "additive": True, "mounts": {"tone": {
        "role": "reward", "raw": 0.5, "normalised": 0.5, "weight": 1.0, "contribution": 0.5,
        "status": "ok", "reason": "polite", "severity": "none"}}}  # fmt: skip
    rows = [
        {"step": n, "sample_id": f"{n}/0", "prompt": [{"role": "user", "content": "Hi"}],
         "response": "x" * 20_001, "fused": 0.5, "explain": explain}
        for n in (1, 2, 3)
    ]  # fmt: skip
    write(tmp_path / "samples.jsonl", rows)
    return tmp_path


@pytest.fixture
def server(serve: Serve, folder: Path) -> Any:
    return serve(
        run=RunFiles(folder, facts={"name": "shop", "model": "tiny"}),
        providers=lambda: [{"name": "tone", "role": "reward", "plugin": "rules", "path": "/x"}],
        status=lambda: {"ready": True, "step": 3, "steps": 9, "secret": "no"},
    )


def test_what_the_run_is(server: Any) -> None:
    found = server.client.get(RUN).json()
    RunFacts.model_validate(found)
    assert (found["run_id"], found["name"], found["kind"]) == ("demo", "shop", "training")
    assert (found["step"], found["steps"], found["read_only"]) == (3, 9, None)
    assert found["mounts"] == [{"name": "tone", "role": "reward", "plugin": "rules"}]
    assert "secret" not in found


def test_the_series_grows_by_its_new_steps(server: Any, folder: Path) -> None:
    first = server.client.get(f"{RUN}/series", params={"prefix": ["reward/", "actor/"]}).json()
    Steps.model_validate(first)
    assert first["steps"] == [1, 2, 3]
    assert set(first["series"]) == {"reward/accuracy/mean", "reward/tone/mean"}
    write(folder / "metrics.jsonl", [step(4, 0.75)])
    query = {"edition": first["edition"], "after": 3}
    second = server.client.get(f"{RUN}/series", params=query).json()
    assert (second["steps"], second["series"]["reward/tone/mean"]) == ([4], [0.75])
    other = server.client.get(f"{RUN}/series", params={"edition": "other", "after": 3}).json()
    assert other["steps"] == [1, 2, 3, 4]


def test_samples_are_explained_and_long_texts_cut(server: Any) -> None:
    found = server.client.get(f"{RUN}/samples", params={"limit": 2}).json()
    Samples.model_validate(found)
    assert [sample["step"] for sample in found["samples"]] == [3, 2]
    sample = found["samples"][0]
    assert (sample["cut"], len(sample["response"])) == (["response"], 20_000)
    assert sample["sum"]["terms"][0]["text"] == "score 0.5 × weight 1"
    assert (sample["sum"]["total"], sample["sum"]["holds"]) == (0.5, True)
    older = server.client.get(f"{RUN}/samples", params={"before": found["next"]}).json()
    assert ([sample["step"] for sample in older["samples"]], older["next"]) == ([1], None)


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "low=nan", "low=x", "status=odd", "before=-1", "text=" + "x" * 201],
)
def test_a_query_that_makes_no_sense_is_422(server: Any, query: str) -> None:
    answer = server.client.get(f"{RUN}/samples?{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["parameter"] == query.partition("=")[0]


def test_correlations_and_where_one_rises_while_another_falls(server: Any, folder: Path) -> None:
    few = server.client.get(f"{RUN}/correlation").json()
    Correlations.model_validate(few)
    assert (few["pairs"], few["marks"]) == ([], [])
    rows = [step(n, 0.5 + n / 100) | {"reward/accuracy/mean": 0.5 - n / 100} for n in range(4, 40)]
    write(folder / "metrics.jsonl", rows)
    found = server.client.get(f"{RUN}/correlation", params={"window": 12}).json()
    Correlations.model_validate(found)
    assert found["pairs"][0]["latest"] == pytest.approx(-1.0)
    (mark,) = found["marks"]
    assert (mark["rising"], mark["falling"], mark["until"]) == ("tone", "accuracy", 39)


def test_a_server_that_keeps_no_figures_says_so(serve: Serve) -> None:
    client = serve().client
    facts = client.get(RUN).json()
    assert facts["kind"] == "none"
    assert "keeps no figures" in facts["note"]
    assert client.get(f"{RUN}/series").json()["steps"] == []
    assert client.get(f"{RUN}/samples").json()["samples"] == []


def test_each_start_of_a_server_has_its_own_name(serve: Serve) -> None:
    assert serve().client.get(RUN).json()["server"] != serve().client.get(RUN).json()["server"]


def test_a_server_to_look_at_changes_nothing(serve: Serve) -> None:
    server = serve(read_only="this is only to look at")
    weights = "/api/v1/reward/weights"
    before = server.client.get(weights).json()
    for method, path in (("POST", weights), ("DELETE", f"{weights}/pins/tone"), ("PUT", "/x")):
        answer = server.client.request(method, path, json={"tone": 3})
        assert answer.status_code == 409
        assert answer.json()["detail"] == "this is only to look at. Nothing was changed."
        assert answer.json()["run_id"] == "demo"
    assert server.client.get(weights).json() == before
