"""The manager inside verl's own loop, in Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from packaging.version import Version

from tests.peers.verl_kit import SEAM, DataProto, outputs, overridden, verl
from verl_reward_sdk import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")

RULES = """score: {base: 0.0, min: 0.0, max: 1.0}
rules:
  - {name: vowels, regex: '[aeiou]', points: 0.5, reason: has a vowel}
"""


@pytest.mark.skipif(
    Version(verl.__version__) < Version("0.9.0"), reason="this verl looks for no entry points"
)
def test_importing_verl_registers_the_manager_through_the_entry_point():
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import verl\n"
        "from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls\n"
        "print(get_reward_manager_cls('verl_reward').__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout.strip() == "verl_core.integrations.verl", done.stderr


@pytest.fixture(scope="module")
def ray_loop(base_config: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """verl's `RewardLoopManager` with two workers, each a Ray actor with our manager."""
    import ray
    from verl.experimental.reward_loop import RewardLoopManager

    folder = tmp_path_factory.mktemp("ray-loop")
    (folder / "rules.yaml").write_text(RULES, "utf-8")
    mount = {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}}
    needs = {
        "type": "known",
        "plugin": "rules",
        "init_kwargs": {"rules": "rules.yaml"},
        "weight": 0.25,
        "reads": ["topic"],
    }
    (folder / "run.yaml").write_text(json.dumps({"reward": [mount, needs]}), "utf-8")
    config = overridden(
        base_config, *SEAM, f"+reward.reward_kwargs.verl_reward.config={folder}/run.yaml"
    )
    environment = {key: v for key, v in os.environ.items() if not key.startswith("VERL_REWARD")}
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield RewardLoopManager(config)
    finally:
        ray.shutdown()
        os.environ.update(before)


def test_verl_s_loop_puts_each_reward_on_its_last_token(ray_loop, tokenizer):
    texts = ["yes", "brr", "abc", "xyz", "oui", "grr", "no"]
    if Version(verl.__version__) < Version("0.9.0"):
        texts.pop()  # rows have to be a multiple of the workers there
    data = DataProto.concat([outputs([t.ljust(3)], tokenizer, topic="t") for t in texts])
    out = ray_loop.compute_rm_score(data)
    scores = out.batch["rm_scores"]
    expected = [0.625 if set(text) & set("aeiou") else 0.0 for text in texts]
    assert scores[:, 3].tolist() == expected
    assert scores.sum(1).tolist() == expected
    assert out.meta_info["reward_extra_keys"] == [
        "acc",
        "reward/style",
        "reward/known",
        "weights/revision",
    ]
    assert out.non_tensor_batch["acc"].tolist() == expected
    assert out.non_tensor_batch["reward/style"].dtype.kind == "f"


def test_a_row_that_raises_reaches_verl_as_our_error_and_the_worker_lives_on(ray_loop, tokenizer):
    import ray

    worker = ray_loop.reward_loop_workers[0]
    good, bad = outputs(["yes"], tokenizer, topic="t"), outputs(["yes"], tokenizer)
    with pytest.raises(ConfigError, match="no column 'topic'"):
        ray.get(worker.compute_score.remote(bad))
    assert ray.get(worker.compute_score.remote(good))["reward_score"] == 0.625


_JOB = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
from verl_core.integrations.verl_weights import session
print("session", session())
"""


def test_all_workers_of_one_ray_job_share_a_session_and_another_job_has_its_own(ray_loop):
    import ray

    from verl_core.integrations.verl_weights import session

    @ray.remote(num_cpus=0)
    class Worker:
        def session(self) -> str:
            from verl_core.integrations.verl_weights import session

            return session()

    workers = [Worker.remote() for _ in range(2)]
    sessions = set(ray.get([worker.session.remote() for worker in workers]))
    assert sessions == {session()}
    address = ray.get_runtime_context().gcs_address
    other = subprocess.run(
        [sys.executable, "-c", _JOB, address],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    (said,) = (line for line in other.stdout.splitlines() if line.startswith("session "))
    assert said.removeprefix("session ") not in sessions
