"""The peers' examples, asked for a model that nothing here has: told in words, and at once."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOWHERE = "nobody/has-this-model"


def run(script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # Without the hub: what asks it all the same finds nobody, and would try for a minute.
    settings = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9", "MODEL": NOWHERE}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *words],
        env={**os.environ, **settings, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_openrlhfs_server_does_not_start_without_its_model() -> None:
    done = run("openrlhf/serve.py", PORT="0")
    assert done.returncode == 1
    assert f"error: model '{NOWHERE}' is not to be found: " in done.stderr
    assert "Traceback" not in done.stderr


def test_openrlhfs_file_names_its_model() -> None:
    done = run("openrlhf/my_reward.py")
    assert done.returncode == 1
    assert f"ConfigError: model '{NOWHERE}' is not to be found: " in done.stderr


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL: make test-peers")
def test_trls_script_names_its_model() -> None:
    done = run("trl/train.py", "--model", NOWHERE)
    assert done.returncode == 1
    assert f"error: model '{NOWHERE}' is not to be found: " in done.stderr
    assert "Traceback" not in done.stderr


def test_verls_script_names_its_model_before_it_starts_ray() -> None:
    done = run("verl/try_rewards.py", "--model", NOWHERE)
    assert done.returncode == 1
    assert f"error: model '{NOWHERE}' is not to be found: " in done.stderr
