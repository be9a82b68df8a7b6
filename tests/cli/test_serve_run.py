"""``verl-reward serve --run DIR``: a real run's folder, looked at and left as it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.cli.main import main


class Shown:
    """A ``verl-reward serve --run`` process."""

    def __init__(self, folder: Path, *words: str) -> None:
        env = {key: v for key, v in os.environ.items() if not key.startswith("VERL_REWARD")}
        command = [sys.executable, "-W", "error", "-m", "verl_core.cli.main", "serve"]
        self.process = subprocess.Popen(
            [*command, "--run", str(folder), "server.port=0", *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        url = next((word.rstrip(";") for word in first.split() if word.startswith("http")), "")
        self.client = httpx.Client(base_url=url, verify=False, trust_env=False, timeout=30)

    def end(self) -> tuple[int, str]:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def show() -> Iterator[Callable[..., Shown]]:
    started: list[Shown] = []

    def start(folder: Path, *words: str) -> Shown:
        started.append(Shown(folder, *words))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end()


@pytest.fixture
def folder(tiny_run: Any) -> Path:
    """The folder of a finished run of three steps."""
    found: Path = tiny_run.train()
    return found


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_finished_run_is_shown_and_not_touched(folder: Path, show: Callable[..., Shown]) -> None:
    before = contents(folder)
    shown = show(folder)
    client = shown.client
    run = client.get("/api/v1/reward/run").json()
    state = json.loads((folder / "state.json").read_text("utf-8"))
    assert (run["run_id"], run["kind"], run["step"]) == (state["run_id"], "folder", 3)
    assert [mount["name"] for mount in run["mounts"]] == ["style", "overlap", "guard"]
    series = client.get("/api/v1/reward/run/series").json()
    assert series["steps"] == [1, 2, 3]
    assert len(series["series"]["reward/style/mean"]) == 3
    samples = client.get("/api/v1/reward/run/samples").json()["samples"]
    assert samples[0]["step"] == 3
    assert samples[0]["sum"]["holds"] is True
    weights = client.get("/api/v1/reward/weights").json()
    assert weights["weights"] == {"style": 1.0, "overlap": 0.5}
    assert weights["revision"] == 1  # looking makes no revision
    assert client.get("/").status_code == 200

    refused = client.post("/api/v1/reward/weights", json={"style": 2})
    assert refused.status_code == 409
    assert "changes nothing in it" in refused.json()["detail"]
    assert shown.end() == (0, "")
    assert contents(folder) == before


def test_a_folder_that_may_only_be_read_and_lacks_files_is_shown(
    folder: Path, tmp_path: Path, show: Callable[..., Shown]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(folder / "metrics.jsonl", bare)
    with (bare / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "rew')  # as a kill leaves it
    (bare / "state.json").write_text("{torn", "utf-8")
    bare.chmod(0o555)
    shown = show(bare)
    assert shown.client.get("/api/v1/reward/run/series").json()["steps"] == [1, 2, 3]
    assert shown.client.get("/api/v1/reward/weights").json()["weights"] == {}
    assert shown.client.get("/api/v1/reward/run").json()["run_id"] == "bare"
    assert shown.end() == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--run", "{tmp}"], "is no run's folder"),
        (["--run", "{tmp}/none"], "is no run's folder"),
        (["run.yaml", "--run", "{run}"], "is no setting"),
        (["--run", "{run}", "trainer.steps=3"], "only the server has settings"),
        (["--run", "{run}", "server.port=x"], "server.port"),
        (["--run", "{run}", "server.prt=1"], "server.prt"),
        (["--run", "{run}", "--state", "{tmp}"], "--state"),
        ([], "there is nothing to serve"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text("", "utf-8")
    places = {"tmp": str(tmp_path), "run": str(run)}
    assert main(["serve", *(word.format(**places) for word in words)]) == 2
    captured = capsys.readouterr()
    assert said in " ".join((captured.err + captured.out).split())
