"""``verl-reward serve`` as real processes that score: workers, kills, drains."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_scoring import NDJSON, SCORE, Process, fused, install

CONFIG = """
name: shop
model: {path: some/model}
data: {train: data.jsonl}
reward:
  - {type: a, plugin: length}
  - {type: b, plugin: length, weight: 2.0}
  - {type: s, plugin: slow, workers: 8}
server: {port: 0}
"""
ROW = {"response": "0"}  # a: 1, b: 2, s: 1

Start = Callable[..., Process]


@pytest.fixture
def start(plugin_site: Any, tmp_path: Path) -> Iterator[Start]:
    install(plugin_site)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "run.yaml").write_text(CONFIG, "utf-8")
    (folder / "data.jsonl").write_text('{"prompt": "hello"}\n', "utf-8")
    env = {key: value for key, value in os.environ.items() if not key.startswith("VERL_REWARD")}
    env |= {"PYTHONPATH": str(plugin_site.folder), "HOME": str(plugin_site.home)}
    started: list[Process] = []

    def begin(*words: str) -> Process:
        process = Process(folder, env, words)
        started.append(process)
        return process

    begin.folder = folder  # type: ignore[attr-defined]
    yield begin
    for process in started:
        process.kill()


class Load:
    """Clients that ask without a pause, each on a connection of its own.

    Attributes:
        answers: the fused rewards that came back with 200.
        refused: statuses that were not 200.
        lost: connections that ended under a request.
    """

    def __init__(self, url: str, clients: int, row: dict[str, Any]) -> None:
        self.answers: list[float] = []
        self.refused: list[int] = []
        self.lost: list[str] = []
        self._url, self._row = url, row
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False, timeout=30) as client:
            while not self._ended.is_set():
                try:
                    answer = client.post(SCORE, json={"rows": [self._row] * 3})
                except httpx.ConnectError:
                    return  # it takes no more
                except httpx.TransportError as error:
                    self.lost.append(repr(error))
                    continue
                if answer.status_code == 200:
                    self.answers += [row["fused"] for row in answer.json()["rows"]]
                else:
                    self.refused.append(answer.status_code)

    def wait_for(self, answers: int) -> None:
        """Return when so many more rows have been answered."""
        wanted = len(self.answers) + answers
        while len(self.answers) < wanted:
            assert any(thread.is_alive() for thread in self._threads), self.lost
            time.sleep(0.01)

    def end(self) -> None:
        """Let every client end."""
        self._ended.set()
        self.join()

    def join(self) -> None:
        """Wait for clients that end by themselves."""
        for thread in self._threads:
            thread.join()


def test_one_process_scores_and_speaks_other_trainers_forms(start: Start) -> None:
    process = start()
    process.ready()
    client = process.client
    assert fused(client.post(SCORE, json={"rows": [ROW]})) == [4.0]
    lines = client.post(SCORE, content=json.dumps(ROW), headers=NDJSON).text
    assert json.loads(lines)["fused"] == 4.0

    # OpenRLHF: remote_reward_model posts lists and reads rewards, scores, extra_logs.
    asked = {"query": ["<p>0", "<p>0"], "prompts": ["<p>", "<p>"], "labels": ["x", "y"]}
    answer = client.post("/get_reward", json=asked).json()
    assert answer["rewards"] == answer["scores"] == [4.0, 4.0]
    assert answer["extra_logs"]["reward/b"] == [2.0, 2.0]

    # slime: remote_rm posts one sample and takes the JSON as its reward.
    sample = {"prompt": "p", "response": "0", "label": None}
    assert client.post("/remote_rm", json=sample).json() == 4.0
    messages = {**sample, "prompt": [{"role": "user", "content": "p"}], "label": {"x": 1}}
    detailed = client.post("/remote_rm?details=true", json=messages).json()
    assert detailed["reward"] == 4.0
    assert detailed["reward/b"] == 2.0
    wrong = client.post("/remote_rm", json={"prompt": 3})
    assert wrong.status_code == 422
    assert {error["key"] for error in wrong.json()["errors"]} == {"prompt", "response"}
    assert process.end() == 0


def test_all_workers_see_a_change_with_the_next_request(start: Start) -> None:
    process = start("--workers", "3")
    process.ready()
    health = process.client.get("/healthz").json()
    assert (health["workers"], health["workers_ready"]) == (3, 3)
    assert len(process.workers()) == 3
    for weight in (0.0, 5.0, 1.0, 7.0):
        with httpx.Client(base_url=process.url, trust_env=False) as client:
            after = client.post("/api/v1/reward/weights", json={"b": weight}).json()
        for _ in range(12):  # each on a connection of its own, which any worker may take
            with httpx.Client(base_url=process.url, trust_env=False) as client:
                answer = client.post(SCORE, json={"rows": [ROW]})
                assert answer.json()["revision"] == after["revision"]
                assert fused(answer) == [2.0 + weight]
    assert process.end() == 0
    assert process.said() == ""


def test_a_lease_holds_in_every_worker(start: Start) -> None:
    process = start("--workers", "2")
    process.ready()
    run = process.client.get("/healthz").json()["run_id"]
    asked = {"run_id": run, "group": "g"}
    lease = process.client.post("/api/v1/reward/leases", json=asked).json()["id"]
    process.client.post("/api/v1/reward/weights", json={"b": 9.0})
    for _ in range(12):
        with httpx.Client(base_url=process.url, trust_env=False) as client:
            body = {"rows": [ROW], "lease": lease}
            assert fused(client.post(SCORE, json=body)) == [4.0]
    process.client.delete(f"/api/v1/reward/leases/{lease}")
    for _ in range(6):
        with httpx.Client(base_url=process.url, trust_env=False) as client:
            assert client.post(SCORE, json={"rows": [ROW], "lease": lease}).status_code == 410


def test_a_killed_worker_is_replaced_and_no_answer_is_wrong(start: Start) -> None:
    process = start("--workers", "2")
    process.ready()
    load = Load(process.url, 8, ROW)
    for _ in range(2):
        load.wait_for(100)
        workers = process.workers()
        os.kill(workers[0], signal.SIGKILL)
        load.wait_for(100)  # the other goes on
        while len(process.workers()) < 2 or workers[0] in process.workers():
            time.sleep(0.02)
    while process.client.get("/healthz").json()["workers_ready"] < 2:
        time.sleep(0.02)
    load.wait_for(100)
    load.end()
    assert set(load.answers) == {4.0}
    assert load.refused == []
    assert len(load.lost) <= 16  # no more than were under way in the killed ones
    assert process.said().count("was ended by SIGKILL") == 2
    assert process.end() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_under_load_loses_no_request(start: Start, workers: str) -> None:
    process = start("--workers", workers)
    process.ready()
    load = Load(process.url, 16, {"response": "0.05"})
    load.wait_for(60)
    process.process.send_signal(signal.SIGTERM)
    load.join()
    assert (load.lost, load.refused) == ([], [])
    process.process.communicate(timeout=60)
    assert process.process.returncode == 0
    assert set(load.answers) == {13.0}


def test_while_it_drains_it_is_not_ready_and_takes_nobody_new(start: Start) -> None:
    process = start()
    process.ready()
    hold = start.folder / "hold"  # type: ignore[attr-defined]
    hold.touch()
    answers: list[httpx.Response] = []
    with httpx.Client(base_url=process.url, trust_env=False, timeout=30) as client:
        asking = threading.Thread(
            target=lambda: answers.append(client.post(SCORE, json={"rows": [ROW]}))
        )
        asking.start()
        with httpx.Client(base_url=process.url, trust_env=False) as prober:
            prober.get("/livez")
            process.process.send_signal(signal.SIGTERM)
            probe = prober.get("/readyz")
            while probe.status_code == 200:  # the signal is on its way
                probe = prober.get("/readyz")
            assert probe.status_code == 503
        host, port = process.url.removeprefix("http://").split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except ConnectionRefusedError:
                break
            time.sleep(0.02)
        assert answers == []
        hold.unlink()
        asking.join()
    assert fused(answers[0]) == [4.0]
    process.process.communicate(timeout=60)
    assert process.process.returncode == 0


def test_the_grace_ends_what_does_not_end(start: Start) -> None:
    process = start("server.drain=0.5")
    process.ready()
    (start.folder / "hold").touch()  # type: ignore[attr-defined]
    lost: list[object] = []

    def ask() -> None:
        try:
            answer = process.client.post(SCORE, json={"rows": [ROW]})
            lost.extend([answer] if answer.status_code >= 500 else [])
        except httpx.TransportError as error:
            lost.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    providers = f"{process.url}/api/v1/reward/providers"
    while not httpx.get(providers, trust_env=False).json()["providers"][0]["calls"]:
        time.sleep(0.02)
    process.process.send_signal(signal.SIGTERM)
    asking.join()
    process.process.communicate(timeout=60)
    assert (process.process.returncode, len(lost)) == (0, 1)


def test_a_worker_that_cannot_start_ends_all_with_its_message(start: Start) -> None:
    config = start.folder / "run.yaml"  # type: ignore[attr-defined]
    text = config.read_text("utf-8").replace("plugin: slow, workers: 8", "plugin: breaking")
    config.write_text(text, "utf-8")
    process = start("--workers", "2")
    process.process.communicate(timeout=60)
    assert process.process.returncode == 1
    said = process.said()
    assert "cannot be loaded: OSError: weights are truncated" in said
    assert "before it was ready" in said
    assert "Traceback" not in said


def test_workers_end_with_their_supervisor(start: Start) -> None:
    import psutil

    process = start("--workers", "2")
    process.ready()
    workers = [psutil.Process(pid) for pid in process.workers()]
    os.kill(process.process.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert (len(gone), alive) == (2, [])


def test_a_worker_told_to_stop_is_replaced(start: Start) -> None:
    process = start("--workers", "2")
    process.ready()
    first = process.workers()[0]
    os.kill(first, signal.SIGTERM)
    while first in process.workers() or len(process.workers()) < 2:
        time.sleep(0.02)
    assert "ended with exit code 0; another is started" in process.said()
    assert process.end() == 0
