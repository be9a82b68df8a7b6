"""kill -9 in the middle, a change of weights before it, and the run goes on to the same bits."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request

import pytest
import torch
from safetensors.torch import load_file

from verl_core.config import load_run_config
from verl_core.trainer.setup import Session
from verl_core.trainer.train import save, train_step

STEPS = 24
#: What differs between two runs of the same bits: clocks and memory.
MEASURED = ("time", "timing_s/", "perf/")


def test_kill_9_then_resume_equals_an_unbroken_run_bit_for_bit(tiny_run, read_jsonl):
    port = _free_port()
    tiny_run.config["server"] = {"port": port}
    tiny_run.config["trainer"] |= {"steps": STEPS, "checkpoint_every": 3}
    folder = tiny_run.folder / "runs" / "tiny"
    process = subprocess.Popen(
        tiny_run.command(),
        cwd=tiny_run.folder,
        env=tiny_run.environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_for(lambda: _steps(folder) >= 4, process)
        _post(port, {"style": 0.25, "overlap": 3.0})
        _wait_for(lambda: _steps(folder) >= 10, process)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    broken_off = read_jsonl(folder / "metrics.jsonl")
    assert 10 <= len(broken_off) < STEPS

    resumed = tiny_run.run("--resume", str(folder))
    assert resumed.returncode == 0, resumed.stderr
    metrics = read_jsonl(folder / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    assert [_bits(line) for line in metrics[: len(broken_off)]] == [_bits(x) for x in broken_off]
    revisions = [line["weights/revision"] for line in metrics]
    assert set(revisions) == {1, 2}

    changed_at = 1 + revisions.index(2)
    unbroken, weights = _unbroken(tiny_run, changed_at)
    assert [_bits(line) for line in metrics] == [_bits(line) for line in unbroken]
    end = load_file(folder / f"checkpoints/step_{STEPS:06d}/policy/model.safetensors")
    assert all(torch.equal(end[name], weights[name]) for name in weights)


def test_resume_without_a_folder_takes_the_newest_run_of_the_name(tiny_run, read_jsonl):
    tiny_run.train("trainer.steps=1")
    second = tiny_run.train("trainer.steps=1")
    result = tiny_run.run("--resume", "trainer.steps=2")
    assert result.returncode == 0, result.stderr
    assert [line["step"] for line in read_jsonl(second / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("named", [False, True])
def test_a_run_that_is_still_running_is_not_resumed_beside_itself(tiny_run, named):
    tiny_run.config["server"] = {"port": _free_port()}  # which the second would want too
    tiny_run.config["trainer"] |= {"steps": 500, "checkpoint_every": 1}
    folder = tiny_run.folder / "runs" / "tiny"
    process = subprocess.Popen(
        tiny_run.command(),
        cwd=tiny_run.folder,
        env=tiny_run.environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_for(lambda: _steps(folder) >= 3, process)
        result = tiny_run.run("--resume", *([str(folder)] if named else []))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert result.returncode == 2, result.stderr
    assert f"is still running (process {process.pid})" in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads((folder / "state.json").read_text("utf-8"))["pid"] == process.pid


def test_resume_where_there_is_nothing_says_so(tiny_run):
    result = tiny_run.run("--resume")
    assert result.returncode == 2
    assert "no run named 'tiny'" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_once_checkpoints_and_writes_the_report(tiny_run, read_jsonl):
    tiny_run.config["trainer"] |= {"steps": 500, "checkpoint_every": 0}
    folder = tiny_run.folder / "runs" / "tiny"
    process = subprocess.Popen(
        tiny_run.command(),
        cwd=tiny_run.folder,
        env=tiny_run.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    _wait_for(lambda: _steps(folder) >= 2, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    last = read_jsonl(folder / "metrics.jsonl")[-1]["step"]
    assert (folder / f"checkpoints/step_{last:06d}/trainer.json").is_file()
    assert (folder / "report" / "index.html").is_file()
    assert "--resume" in output
    assert json.loads((folder / "state.json").read_text("utf-8"))["status"] == "stopped"


@pytest.mark.parametrize("leftover", [".draft_000009", "step_000009"])
def test_a_checkpoint_that_is_not_whole_is_not_taken(tiny_run, leftover):
    from verl_core.trainer.checkpoint import latest

    folder = tiny_run.train("trainer.steps=2")
    (folder / "checkpoints" / leftover / "policy").mkdir(parents=True)
    assert latest(folder).step == 2


def test_a_full_disk_leaves_the_checkpoint_before_and_says_what_to_do(tiny_run):
    """A real file system without room: the run's folder lies on a small tmpfs."""
    small = tiny_run.folder / "runs"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(small)], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        result = tiny_run.run("trainer.steps=6")
        assert result.returncode == 1
        assert "earlier checkpoints are intact" in result.stderr
        assert "Make room" in result.stderr
        assert "--resume NEWDIR" in result.stderr
        whole = [p for p in (small / "tiny" / "checkpoints").iterdir() if p.name[0] != "."]
        assert whole
        assert all((p / "trainer.json").is_file() for p in whole)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def _unbroken(tiny_run, changed_at):
    """The same run in this process, its weights changed before step `changed_at`."""
    cfg = load_run_config(tiny_run.write(), ["server.enabled=false", "name=unbroken"])
    with Session(cfg, plain=True) as run:
        for step in range(1, STEPS + 1):
            if step == changed_at:
                run.engine.store.update({"style": 0.25, "overlap": 3.0}, author="test")
            run.record(step, train_step(run, step))
        save(run, STEPS)
        folder = run.folder.path
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines, load_file(folder / f"checkpoints/step_{STEPS:06d}/policy/model.safetensors")


def _bits(line):
    return {key: value for key, value in line.items() if not key.startswith(MEASURED)}


def _steps(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _wait_for(condition, process, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < deadline, "the run took too long"
        time.sleep(0.02)


def _post(port, weights):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/reward/weights",
        data=json.dumps(weights).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
