"""``verl-reward serve`` as a real process with a real plugin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

PLUGIN = '''
import os, time
from pathlib import Path
from verl_reward_sdk import RewardProvider, hookimpl

VERL_REWARD_API = 1


class Toy(RewardProvider):
    """Counts characters."""

    name = "toy"

    def setup(self):
        Path("loading").touch()
        if Path("broken").exists():
            raise OSError("toy.bin is truncated")
        while Path("hold").exists():
            time.sleep(0.01)

    def score(self, batch):
        return [float(len(text)) for text in batch.responses]


@hookimpl
def verl_reward_providers():
    yield Toy
'''
CONFIG = """
name: shop
model: {path: some/model}
data: {train: data.jsonl}
reward:
  - {type: accuracy, plugin: toy}
  - {type: tone, plugin: toy, weight: {linear: {from: 2.0, to: 0.5, steps: 10}}}
  - {type: compliance, plugin: toy}
server: {port: 0}
"""


class Serving:
    """One ``verl-reward serve`` process; `url` is read from what it prints."""

    def __init__(
        self, folder: Path, env: dict[str, str], words: list[str], *, ignored: bool = False
    ) -> None:
        # With `ignored`, as a shell script leaves SIGINT to what it starts with &.
        shell = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if ignored else []
        command = [sys.executable, "-W", "error", "-m", "verl_core.cli.main", "serve", "run.yaml"]
        self.process = subprocess.Popen(
            [*shell, *command, *words],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        self.url = next((word for word in first.split() if word.startswith("http")), "")
        self.client = httpx.Client(base_url=self.url, verify=False, trust_env=False)

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/healthz").json()
        return found

    def ready(self) -> dict[str, Any]:
        while not (found := self.health())["ready"]:
            time.sleep(0.01)
        return found

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code, and what it said on stderr."""
        self.client.close()
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@pytest.fixture
def serve(plugin_site: Any, tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    plugin_site.add(
        "verl-reward-toy", rewards={"toy": "toy_reward"}, files={"toy_reward.py": PLUGIN}
    )
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "run.yaml").write_text(CONFIG, "utf-8")
    (folder / "data.jsonl").write_text('{"prompt": "hello"}\n', "utf-8")
    env = {key: value for key, value in os.environ.items() if not key.startswith("VERL_REWARD")}
    env |= {"PYTHONPATH": str(plugin_site.folder), "HOME": str(plugin_site.home)}
    started: list[Serving] = []

    def start(*words: str, ignored: bool = False, **more: str) -> Serving:
        serving = Serving(folder, env | more, list(words), ignored=ignored)
        started.append(serving)
        return serving

    start.folder = folder  # type: ignore[attr-defined]
    yield start
    for serving in started:
        serving.client.close()
        if serving.process.poll() is None:
            serving.process.kill()
        serving.process.communicate()


def test_it_serves_until_sigterm_and_goes_on_after_a_kill(serve: Any) -> None:
    first = serve()
    run = first.ready()
    changed = first.client.post(
        "/api/v1/reward/weights", json={"accuracy": 2.0, "tone": 1.0, "compliance": 0.5}
    )
    assert changed.headers["etag"] == '"2"'
    described = first.client.get("/api/v1/reward/providers").json()["providers"]
    assert [mount["name"] for mount in described] == ["accuracy", "tone", "compliance"]
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL

    second = serve()
    assert second.ready()["run_id"] == run["run_id"]
    found = second.client.get("/api/v1/reward/weights").json()
    assert (found["revision"], found["pinned"]) == (2, ["accuracy", "tone", "compliance"])
    assert found["weights"] == {"accuracy": 2.0, "tone": 1.0, "compliance": 0.5}
    assert second.end(signal.SIGTERM) == (0, "")
    assert (serve.folder / "runs" / "shop.serve" / "weights.db").exists()


def test_it_is_live_but_not_ready_while_it_loads_and_ctrl_c_ends_it(serve: Any) -> None:
    hold = serve.folder / "hold"
    hold.touch()
    serving = serve("--state", "elsewhere")
    assert serving.health()["ready"] is False
    assert serving.client.get("/api/v1/reward/weights").status_code == 200
    hold.unlink()
    assert serving.ready()["live"] is True
    assert serving.end(signal.SIGINT) == (0, "")
    assert (serve.folder / "elsewhere" / "weights.db").exists()


def test_ctrl_c_ends_it_where_a_script_has_started_it_in_the_background(serve: Any) -> None:
    serving = serve(ignored=True)
    serving.ready()
    assert serving.end(signal.SIGINT) == (0, "")


def test_a_provider_that_cannot_be_loaded_ends_it_and_names_the_mount(serve: Any) -> None:
    (serve.folder / "broken").touch()
    serving = serve()
    _, errors = serving.process.communicate(timeout=30)
    assert serving.process.returncode == 1
    assert "mount 'accuracy' (toy) cannot be loaded: OSError: toy.bin is truncated" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["server.host=0.0.0.0"], "VERL_REWARD_TOKEN"),
        (["reward.tone.wieght=2"], "weight"),
        (["reward.tone.plugin=toyy"], "toyy"),
        (["--state", "run.yaml"], "--state: nothing can be made in 'run.yaml'"),
    ],
)
def test_bad_input_ends_it_before_anything_is_loaded(
    serve: Any, words: list[str], said: str
) -> None:
    serving = serve(*words)
    _, errors = serving.process.communicate(timeout=30)
    assert serving.process.returncode == 2
    assert said in errors
    assert "Traceback" not in errors
    assert not (serve.folder / "loading").exists()


def test_a_taken_port_ends_it_before_anything_is_loaded(serve: Any) -> None:
    hold = serve.folder / "hold"
    hold.touch()
    first = serve()
    run = first.health()["run_id"]
    hold.unlink()
    first.ready()
    (serve.folder / "loading").unlink()
    second = serve(f"server.port={first.url.rpartition(':')[2]}", "--state", "other")
    _, errors = second.process.communicate(timeout=30)
    assert second.process.returncode == 2
    assert f"is taken: the verl-reward run '{run}' listens there" in errors
    assert "server.port=" in errors
    assert not (serve.folder / "loading").exists()


def test_with_a_token_it_may_listen_beyond_loopback(serve: Any) -> None:
    serving = serve("server.host=0.0.0.0", VERL_REWARD_TOKEN="hush-hush")
    assert "run_id" not in serving.ready()
    assert serving.client.get("/api/v1/reward/weights").status_code == 401
    headers = {"Authorization": "Bearer hush-hush"}
    assert serving.client.get("/api/v1/reward/weights", headers=headers).status_code == 200
    assert serving.end() == (0, "")
