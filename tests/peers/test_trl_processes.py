"""Several processes of TRL under one control plane: real processes, joined by torch.distributed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_core.control import ControlServer, ControlState
from verl_core.integrations.trl_rules import Trainer
from verl_core.integrations.trl_scorer import Plan, shared_session
from verl_core.rewards.weights import WeightStore
from verl_reward_sdk.errors import ConfigError

RANK = """
import json, sys
from types import SimpleNamespace

import torch.distributed as dist

from verl_core.integrations.trl import reward_functions

dist.init_process_group("gloo")
(function,) = reward_functions(sys.argv[1], weights=sys.argv[2]).reward_funcs
for line in sys.stdin:  # a step, when the test says so
    state = SimpleNamespace(global_step=int(line))
    rows = {"prompts": ["Why?"], "completions": ["x"], "completion_ids": [[1]], "a": [1.0]}
    print(json.dumps(function(**rows, trainer_state=state)), flush=True)
dist.destroy_process_group()
"""


def test_a_step_that_ranks_reach_on_either_side_of_a_change_has_one_revision(
    run_yaml: Any, mounts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer_plugin: Any
) -> None:
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    store = WeightStore({"a": 1.0}, run_id="far")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ControlServer(ControlState(run_id="far", store=store), port=0) as server:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(run_yaml(mounts.cell("a"))), server.url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(str, sys.path)),
                    "WORLD_SIZE": "2",
                    "RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
            )
            for rank in (0, 1)
        ]

        def ask(rank: int, step: int) -> None:
            stdin = ranks[rank].stdin
            assert stdin is not None
            stdin.write(f"{step}\n")
            stdin.flush()

        def told(rank: int) -> list[float]:
            stdout = ranks[rank].stdout
            assert stdout is not None
            found: list[float] = json.loads(stdout.readline())
            return found

        ask(0, 0)
        ask(1, 0)
        assert [told(0), told(1)] == [[1.0], [1.0]]
        ask(1, 1)
        assert told(1) == [1.0]
        store.update({"a": 3.0}, author="test")
        ask(0, 1)
        assert told(0) == [1.0]
        ask(0, 2)
        ask(1, 2)
        assert [told(0), told(1)] == [[3.0], [3.0]]
        for rank in ranks:
            rank.communicate(timeout=60)
        assert [rank.returncode for rank in ranks] == [0, 0]
    store.close()


def test_processes_that_are_not_connected_are_refused() -> None:
    sets: Any = None
    plan = Plan(sets, Trainer(processes=2), "fused", "http://127.0.0.1:9", "s")
    with pytest.raises(ConfigError, match="2 processes, which are not connected"):
        shared_session(plan)
