"""``/metrics``: what is counted, from a real engine, over real sockets and several workers."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from verl_core.control.metrics.board import BUCKETS, Board, Family
from verl_core.control.metrics.requests import Routes

kit = sys.modules["control_scoring"]

Scraped = dict[tuple[str, ...], float]

MIXED = """reward:
  - {type: a, plugin: length}
  - {type: b, plugin: match, applies_to: "kind == 'x'", cache: {}}
  - {type: g, plugin: guarding, role: gate, penalty: -1.0}
"""


def scraped(client: httpx.Client, headers: dict[str, str] | None = None) -> Scraped:
    """(name, each label's value) -> number, as Prometheus' own parser reads the page."""
    answer = client.get("/metrics", headers=headers or {})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def row(text: str, kind: str = "x", **more: Any) -> dict[str, Any]:
    return {"response": text, "columns": {"truth": "yes", "kind": kind}, **more}


def test_rows_are_counted_by_mount_and_status_gates_and_outcomes(
    scorer: Callable[..., Any],
) -> None:
    server = scorer(MIXED)
    rows = [row("yes"), row(""), row("bad"), row("break"), row("no", kind="y")]
    assert server.client.post(kit.SCORE, json={"rows": rows}).status_code == 200
    assert server.client.post(kit.SCORE, json={"rows": rows[:1]}).status_code == 200
    found = scraped(server.client)
    scores = "verl_reward_scores_total"
    assert found[scores, "a", "ok"] == 6
    assert found[scores, "b", "not_applicable"] == 1
    assert found[scores, "b", "abstained"] == 1
    assert found[scores, "b", "ok"] == 4
    assert found[scores, "g", "failed"] == 1
    assert found["verl_reward_failures_total", "g", "row"] == 1
    assert found["verl_reward_gate_words_total", "g", "veto"] == 1
    assert found["verl_reward_rows_total", "blocked"] == 1
    assert found["verl_reward_rows_total", "rewarded"] == 5
    assert found["verl_reward_cache_rows_total", "b"] == 5
    assert found["verl_reward_cache_hits_total", "b"] == 1
    assert ("verl_reward_cache_rows_total", "a") not in found
    assert found["verl_reward_mount_seconds_count", "a"] == 2
    # Of the second request the cache of b knew everything: nothing was executed.
    assert found["verl_reward_mount_seconds_count", "b"] == 1


def test_what_a_run_is_stands_beside_what_it_did(scorer: Callable[..., Any]) -> None:
    server = scorer()
    server.client.post("/api/v1/reward/weights", json={"a": 3.0})
    found = scraped(server.client)
    assert found["verl_reward_revision",] == 2
    assert found["verl_reward_weight", "a"] == 3.0
    assert found["verl_reward_weight", "b"] == 2.0
    assert found["verl_reward_weight_pinned", "a"] == 1
    assert found["verl_reward_weight_pinned", "b"] == 0
    assert found["verl_reward_generation", "a", "1"] == 1
    assert found["verl_reward_ready",] == 1
    assert found["verl_reward_run_info", "demo"] == 1
    (build,) = [key for key in found if key[0] == "verl_reward_build_info"]
    assert len(build) == 3


FAILING = '''
import os, time
from verl_reward_sdk import ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1


class Config(ProviderConfig):
    how: str


class Failing(RewardProvider[Config]):
    """Fails in one of many ways."""

    name = "failing"
    score_range = (0.0, 1.0)

    def score(self, batch):
        how = self.config.how
        if how == "exception":
            raise OSError("free text " + batch.responses[0])
        if how == "contract":
            return [2.0] * len(batch)
        if how == "worker":
            os.kill(os.getpid(), 9)
        time.sleep(0.5)
        return [1.0] * len(batch)


@hookimpl
def verl_reward_providers():
    yield Failing
'''


@pytest.mark.parametrize(
    ("how", "more", "asked", "reason"),
    [
        ("exception", "", 1, "exception"),
        ("contract", "", 1, "contract"),
        ("slow", ", timeout: 0.1", 1, "timeout"),
        ("worker", ", execution: process", 1, "worker"),
        ("slow", ", queue_timeout: 0.1", 2, "queue"),
        ("exception", ", breaker: {failures: 1, reset: 600}", 2, "breaker"),
    ],
)
def test_failures_have_a_reason_out_of_a_few_words(
    scorer: Callable[..., Any], plugin_site: Any, how: str, more: str, asked: int, reason: str
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    plugin_site.add(
        "failing", rewards={"failing": "failing_mod"}, files={"failing_mod.py": FAILING}
    )
    mount = f"{{type: f, plugin: failing, init_kwargs: {{how: {how}}}{more}}}"
    server = scorer(f"reward: [{mount}, {{type: a, plugin: length}}]\n")
    with ThreadPoolExecutor(asked) as threads:
        one = threads.submit(server.score, "sk-free-text")
        if reason == "breaker":
            one.result()
        others = [threads.submit(server.score, "sk-free-text") for _ in range(asked - 1)]
        answers = [each.result() for each in (one, *others)]
    assert {answer.status_code for answer in answers} == {200}
    found = scraped(server.client)
    assert found["verl_reward_failures_total", "f", reason] == 1
    assert found["verl_reward_scores_total", "f", "failed"] >= 1
    reasons = {key[2] for key in found if key[0] == "verl_reward_failures_total"}
    assert reasons == {
        *("exception", "timeout", "queue", "contract", "breaker", "worker", "row"),
    }
    assert "free-text" not in server.client.get("/metrics").text


def test_a_failure_counts_where_the_batch_is_refused_for_it(scorer: Callable[..., Any]) -> None:
    server = scorer("reward: [{type: s, plugin: slow, timeout: 0.05}]\n")
    answer = server.score("5", training=True)
    assert answer.status_code == 503
    assert scraped(server.client)["verl_reward_failures_total", "s", "timeout"] == 1


def test_requests_count_by_route_and_no_path_makes_a_series(scorer: Callable[..., Any]) -> None:
    server = scorer(token="t")
    client = server.client
    client.headers["Authorization"] = "Bearer t"
    before = len(scraped(client))
    for number in range(50):
        client.get(f"/nowhere/{number}")
        client.post(f"/api/v1/reward/providers/none{number}/reload", json={})
        client.request(f"M{number}", "/healthz")
    client.get("/healthz", headers={"Host": "evil.example"})
    client.get("/metrics", headers={"Authorization": "Bearer wrong"})
    server.lines(b'{"response": "abc"}\n')
    found = scraped(client)
    requests = "verl_reward_http_requests_total"
    assert found[requests, "GET", "other", "404"] == 50
    reload = "/api/v1/reward/providers/{name}/reload"
    assert found[requests, "POST", reload, "404"] == 50
    assert found[requests, "other", "/healthz", "405"] == 50
    assert found[requests, "GET", "/healthz", "421"] == 1
    assert found[requests, "GET", "/metrics", "401"] == 1
    assert found[requests, "POST", kit.SCORE, "200"] == 1
    histograms = 5 * (len(BUCKETS) + 3)  # other, reload, healthz, metrics, score
    assert len(found) <= before + 7 + histograms


def test_a_histogram_is_whole(scorer: Callable[..., Any]) -> None:
    server = scorer()
    for _ in range(3):
        server.score("abc")
    found = scraped(server.client)
    name = "verl_reward_http_request_seconds"
    counts = [
        value for key, value in found.items() if key[0] == f"{name}_bucket" and kit.SCORE in key
    ]
    assert counts == sorted(counts)
    assert len(counts) == len(BUCKETS) + 1
    assert counts[-1] == found[f"{name}_count", kit.SCORE] == 3
    assert 0 < found[f"{name}_sum", kit.SCORE] < math.inf


def test_openmetrics_where_it_is_asked_for(scorer: Callable[..., Any]) -> None:
    client = scorer().client
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = client.get("/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    names = {family.name for family in openmetrics_families(answer.text)}
    assert {"verl_reward_scores", "verl_reward_revision", "verl_reward_build"} <= names


def test_it_is_behind_the_guard_and_the_read_token_is_enough(scorer: Callable[..., Any]) -> None:
    server = scorer(token="all", read_token="look")
    assert server.client.get("/metrics").status_code == 401
    scraped(server.client, {"Authorization": "Bearer look"})


def test_what_waits_and_what_is_refused(scorer: Callable[..., Any]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from verl_core.control.scoring.admission import ScoringLimits

    server = scorer("reward: [{type: s, plugin: slow}]\n", scoring=ScoringLimits(requests=1))
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(server.score, "1", "0.01")
        while scraped(server.client)["verl_reward_queue_rows",] != 2:
            assert not slow.done()
        assert server.score("0").status_code == 429
        found = scraped(server.client)
        assert found["verl_reward_queue_requests",] == 1
        assert found["verl_reward_queue_refused_total",] == 1
        assert slow.result().status_code == 200
    assert scraped(server.client)["verl_reward_queue_rows",] == 0


def test_a_run_that_scores_for_nobody_else_tells_of_its_own_scoring(
    scorer: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    """As a training run with ``live_rows: 0``."""
    from verl_reward_sdk.batch import RewardBatch

    engine = scorer().engine
    server = serve(counted=engine)
    engine.score(
        RewardBatch(sample_ids=["1"], prompts=["p"], responses=["abcd"], training=True, step=3)
    )
    assert scraped(server.client)["verl_reward_scores_total", "a", "ok"] == 1


# -- several workers -------------------------------------------------------------------------------


def test_workers_count_into_one_sum_that_no_death_takes_from(tmp_path: Path) -> None:
    families = [
        Family("counter", "c", "", ("x",), (("1",), ("2",))),
        Family("histogram", "h", ""),
        Family("gauge", "g", ""),
    ]
    with (tmp_path / "board").open("w+b") as file:
        descriptor = file.fileno()
        first, second = (Board(families, file=descriptor, row=row, rows=2) for row in (0, 1))
        first.add([(first.at("c", "1"), 2.0), (first.at("c", "2"), 1.0)])
        second.add([(second.at("c", "1"), 3.0)])
        first.see(first.at("h"), 0.003)
        second.set(second.at("g"), 7.0)
        assert second.total()[second.at("c", "1")] == 5.0
        again = Board(families, file=descriptor, row=1, rows=2)  # in the place of the second
        again.add([(again.at("c", "1"), 1.0)])
        assert first.total()[first.at("c", "1")] == 6.0
        assert first.total()[first.at("g")] == 0.0  # what a dead worker had under way is not
        # One whose plugins changed meanwhile counts other series: not into these.
        Board([*families, Family("counter", "d", "")], file=descriptor, row=1, rows=2)
        assert first.total()[first.at("c", "1")] == 2.0


def test_two_workers_one_of_which_is_killed_are_one_page(plugin_site: Any, tmp_path: Path) -> None:
    kit.install(plugin_site)
    (tmp_path / "run.yaml").write_text(kit.RUN + "server: {port: 0}\n", "utf-8")
    served = kit.Process(tmp_path, kit.environment(plugin_site), ["--workers", "2"])
    try:
        served.ready()
        for number in range(20):  # each on a connection of its own: both workers get some
            with httpx.Client(base_url=served.url, trust_env=False, timeout=60) as client:
                rows = {"rows": [{"response": "abc"}]}
                assert client.post(kit.SCORE, json=rows).status_code == 200, number
                assert scraped(client)["verl_reward_scores_total", "a", "ok"] == number + 1
        workers = served.workers()
        os.kill(workers[0], signal.SIGKILL)
        while True:
            try:
                if set(served.workers()) - set(workers):
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        with httpx.Client(base_url=served.url, trust_env=False, timeout=60) as client:
            found = scraped(client)
        assert found["verl_reward_scores_total", "a", "ok"] == 20
        assert found["verl_reward_workers",] == 2
        assert served.end() == 0, served.said()
    finally:
        served.kill()


# -- names of routes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/a", "/a"),
        ("/a/", "other"),
        ("/b/x", "/b/{name}"),
        ("/b/x/y", "other"),
        ("/c/x/y", "/c/{rest:path}"),
        ("/human", "/human"),
        ("/human/deep/er", "/human"),
        ("/humane", "other"),
        ("", "other"),
    ],
)
def test_a_path_is_named_by_its_route(path: str, route: str) -> None:
    assert Routes(["/a", "/b/{name}", "/c/{rest:path}"], ["/human"]).of(path) == route
