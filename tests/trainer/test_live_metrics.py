"""A training run is told of at ``/metrics`` as a served config is."""

from __future__ import annotations

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from verl_core.config import load_run_config
from verl_core.trainer.setup import Session
from verl_core.trainer.train import train_step


def test_its_steps_are_counted_also_where_it_scores_for_nobody_else(tiny_run: Any) -> None:
    settings = ["server.enabled=true", "server.port=0", "server.live_rows=0"]
    cfg = load_run_config(tiny_run.write(), settings)
    with Session(cfg, plain=True) as run, httpx.Client(trust_env=False) as client:
        for step in (1, 2):
            run.record(step, train_step(run, step))
        text = client.get(f"{run.server.url}/metrics").text
        mounts = list(run.engine.mounts)
    rows = 2 * cfg.rollout.prompts_per_step * cfg.rollout.n
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    for name in mounts:
        statuses = ("ok", "abstained", "failed", "not_applicable")
        counted = [found["verl_reward_scores_total", name, status] for status in statuses]
        assert sum(counted) == rows
        assert found["verl_reward_mount_seconds_count", name] >= 2
    assert sum(v for k, v in found.items() if k[0] == "verl_reward_rows_total") == rows
    assert found["verl_reward_step",] == 2
    assert found["verl_reward_run_info", run.folder.run_id] == 1
