"""schemathesis reads the OpenAPI document and sends what it allows and what it does not: nothing
may end in a 5xx, and every answer must be one that the document announces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from verl_core.control import ControlState, create_app
from verl_core.rewards.weights import WeightStore

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
TOKEN = "admin"
SCORING = """reward:
  - {type: a, plugin: length}
  - {type: b, plugin: match, weight: 2.0, cache: {}}
  - {type: g, plugin: guarding, role: gate, penalty: -1.0}
"""
#: A stream without an end, of which `test_events` has its own tests.
ENDLESS = "/api/v1/reward/weights/events"


def _operations() -> list[tuple[str, str]]:
    with closing(WeightStore({"a": 1.0})) as store:
        document = create_app(ControlState(run_id="demo", store=store)).openapi()
    return [
        (method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if path != ENDLESS
    ]


OPERATIONS = _operations()


def attack(server: Any, method: str, path: str, examples: int) -> list[int]:
    """Send `examples` right and as many wrong requests to an operation; the statuses."""
    schema = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    schema.config.update(base_url=server.url)
    operation = schema[path][method]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    statuses: list[int] = []

    def send(mode: GenerationMode) -> None:
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def each(case: Any) -> None:
            answer = case.call(headers=headers, timeout=60)
            statuses.append(answer.status_code)
            case.validate_response(answer, checks=CHECKS)

        each()

    send(GenerationMode.POSITIVE)
    if method != "get" or operation.query or operation.path_parameters:
        send(GenerationMode.NEGATIVE)
    return statuses


@pytest.fixture
def scoring(scorer: Callable[..., Any]) -> Any:
    return scorer(SCORING, token=TOKEN)


@pytest.fixture
def live(serve: Callable[..., Any], tmp_path: Any) -> Iterator[Any]:
    """A run's store in a file, and nothing to score with."""
    return serve(path=tmp_path / "weights.db", token=TOKEN)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_served_config_answers_as_its_document_says(scoring: Any, method: str, path: str) -> None:
    statuses = attack(scoring, method, path, 15)
    assert statuses
    assert max(statuses) < 500


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_live_store_answers_as_its_document_says(live: Any, method: str, path: str) -> None:
    assert max(attack(live, method, path, 10)) < 500


@pytest.mark.long
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_many_more_requests_find_nothing_else(scoring: Any, method: str, path: str) -> None:
    assert max(attack(scoring, method, path, 1000)) < 500
