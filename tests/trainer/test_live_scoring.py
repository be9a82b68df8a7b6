"""A training run scores for others too, and its step comes first."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from verl_core.config import load_run_config
from verl_core.trainer.setup import Session
from verl_core.trainer.train import train_step

SCORE = "/api/v1/reward/score"
#: Metrics that tell of time or of the machine.
MEASURED = ("time", "timing_s/", "perf/")


def _rows(run: Any, count: int) -> dict[str, Any]:
    columns = dict.fromkeys(run.engine.reads, "yes")
    return {"rows": [{"prompt": "Why?", "response": "yes", "columns": columns}] * count}


def _trained(tiny_run: Any, name: str, *, asked: bool) -> list[dict[str, Any]]:
    """The metrics of a run of three steps; with `asked`, clients score all the while."""
    cfg = load_run_config(
        tiny_run.write(), ["server.enabled=true", "server.port=0", f"name={name}"]
    )
    ended = threading.Event()
    statuses: list[int] = []
    with Session(cfg, plain=True) as run, ThreadPoolExecutor(8) as pool:
        body = _rows(run, 64)

        def ask() -> None:
            with httpx.Client(base_url=run.server.url, trust_env=False, timeout=60) as client:
                while not ended.is_set():
                    statuses.append(client.post(SCORE, json=body).status_code)

        try:
            if asked:
                asking = [pool.submit(ask) for _ in range(8)]
                while 200 not in statuses:
                    assert not any(one.done() for one in asking)
                    ended.wait(0.01)
            for step in range(1, 4):
                run.record(step, train_step(run, step))
        finally:
            ended.set()
        folder = run.folder.path
    assert set(statuses) <= {200, 429}
    assert not asked or 429 in statuses  # eight ask, four may wait
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [
        {key: v for key, v in json.loads(line).items() if not key.startswith(MEASURED)}
        for line in lines
    ]


def test_a_run_is_the_same_to_the_last_bit_while_others_have_it_score(tiny_run: Any) -> None:
    alone = _trained(tiny_run, "alone", asked=False)
    assert len(alone) == 3
    assert _trained(tiny_run, "asked", asked=True) == alone


def test_it_takes_few_rows_at_a_time_and_may_be_told_to_take_none(tiny_run: Any) -> None:
    cfg = load_run_config(
        tiny_run.write(), ["server.enabled=true", "server.port=0", "server.live_rows=8"]
    )
    with Session(cfg, plain=True) as run:
        answer = httpx.post(run.server.url + SCORE, json=_rows(run, 8), trust_env=False)
        assert answer.status_code == 200, answer.text
        assert answer.json()["run_id"] == run.folder.run_id
        answer = httpx.post(run.server.url + SCORE, json=_rows(run, 9), trust_env=False)
        assert answer.status_code == 413
    cfg = load_run_config(
        tiny_run.write(),
        ["server.enabled=true", "server.port=0", "server.live_rows=0", "name=none"],
    )
    with Session(cfg, plain=True) as run:
        answer = httpx.post(run.server.url + SCORE, json=_rows(run, 1), trust_env=False)
        assert answer.status_code == 404
