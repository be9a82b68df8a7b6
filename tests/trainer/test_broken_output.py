"""Nothing that happens to standard output ends a run, or costs it a step."""

from __future__ import annotations

import io
import json
import os
import pty
import shlex
import subprocess
import sys
import threading

import pytest

from verl_core.trainer import checkpoint
from verl_core.trainer.display import make_display, steady

#: A reward that does to this process's standard output what a test says.
NODE = """
import os
import sys
from verl_core.trainer.reward import RewardNode


class Meddles(RewardNode):
    def __init__(self, what):
        self.what = what

    def compute_reward(self, batch):
        what, self.what = self.what, ""
        exec(what)
        print("said by a reward")
        return batch["response_mask"].sum(-1).float()
"""
LOST = "standard output cannot be written to"


@pytest.fixture
def short_run(tiny_run):
    tiny_run.config["trainer"] |= {"steps": 3, "checkpoint_every": 0, "eval_before": False}
    return tiny_run


def in_shell(run, line, **options):
    """The run's command in the place of ``TRAIN`` in a line of bash."""
    words = line.replace("TRAIN", shlex.join(run.command()))
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=run.folder,
        env=run.environment(),
        **options,
    )


def assert_whole(folder, read_jsonl, steps=3):
    """The run came to its end, and everything it makes is there."""
    assert json.loads((folder / "state.json").read_text("utf-8"))["status"] == "finished"
    assert [line["step"] for line in read_jsonl(folder / "metrics.jsonl")] == list(
        range(1, steps + 1)
    )
    assert checkpoint.latest(folder).step == steps
    assert len(read_jsonl(folder / "eval" / "after.jsonl")) == 6
    assert (folder / "report" / "index.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("TRAIN | head -2", "Broken pipe"),
        ("TRAIN > /dev/full", "No space left on device"),
        ("TRAIN > /dev/full 2>&1", None),
        ("TRAIN >&- 2>&- <&-", None),
    ],
)
def test_a_run_whose_output_breaks_goes_on_to_its_end(short_run, read_jsonl, line, told):
    done = in_shell(short_run, line)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(LOST) == (told is not None)
    assert f"{LOST} ({told})" in done.stderr or told is None
    assert_whole(short_run.folder / "runs" / "tiny", read_jsonl)


@pytest.mark.parametrize(
    "what",
    [
        "sys.stdout.close()",
        "os.close(1)",
        "sys.stdout.detach()",
        "sys.stdout = sys.stderr = None",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    ],
)
def test_what_a_reward_does_to_standard_output_harms_neither_run_nor_display(
    short_run, read_jsonl, what
):
    (short_run.folder / "meddler.py").write_text(NODE, "utf-8")
    node = {"node_class": "meddler.Meddles", "init_kwargs": {"what": what}}
    short_run.config["reward"].append({"type": "meddles", **node})
    done = short_run.run()
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert any(line.startswith("step 3/3  ") for line in said)
    assert any(line.startswith("report ") for line in said)
    assert_whole(short_run.folder / "runs" / "tiny", read_jsonl)


# -- the streams themselves --


def test_a_pipe_that_nobody_reads_loses_what_is_written_and_says_so_once(capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken:
        stream = steady(broken)
        for _ in range(3):
            assert stream.write("lost\n") == 5
            stream.flush()
    assert capfd.readouterr().err.count(LOST) == 1


def test_a_place_that_has_room_again_is_written_to_again(tmp_path):
    """`/dev/full` stands for the full disk, which then is another file of the same descriptor."""
    full = os.open("/dev/full", os.O_WRONLY)
    with os.fdopen(full, "w") as target:
        stream = steady(target)
        stream.write("lost\n")
        roomy = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(roomy, stream.fileno())
        os.close(roomy)
        stream.write("kept\n")
    assert (tmp_path / "log").read_text() == "kept\n"


def test_a_stream_that_takes_no_more_just_now_is_waited_for():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text = "x" * 300_000 + "\n"
    read: list[bytes] = []

    def drain():
        while part := os.read(reader, 4096):
            read.append(part)

    thread = threading.Thread(target=drain)
    with os.fdopen(writer, "w") as target:
        stream = steady(target)
        thread.start()
        stream.write(text)
        del stream  # its descriptor ends with it, and the pipe with both
    thread.join()
    os.close(reader)
    assert b"".join(read).decode() == text


def test_what_is_closed_or_none_is_replaced_and_a_buffer_stays_itself(tmp_path):
    closed = (tmp_path / "x").open("w")
    closed.close()
    for stream in (closed, None):
        assert steady(stream).write("x") == 1
    buffer = io.StringIO()
    assert steady(buffer) is buffer


def test_text_that_is_no_utf_8_shows_as_a_question_mark(tmp_path, monkeypatch):
    with (tmp_path / "out").open("w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "stdout", out)
        display = make_display("run", 1, plain=True)
        display.say("a reason with \ud800 in it")
    assert (tmp_path / "out").read_text("utf-8") == "a reason with ? in it\n"


LIVE = """
import os, sys
from verl_core.trainer.display import LiveDisplay, make_display
with make_display("run", 3, env={}) as display:
    assert isinstance(display, LiveDisplay)
    display.say("ready")
    sys.stdin.readline()
    for step in range(1, 4):
        with display.phase("evaluating"):
            display.say(f"step {step}")
        display.step(step, {"reward/fused/mean": 0.5})
open(sys.argv[1], "w").write("ended")
"""


def test_a_terminal_that_goes_away_takes_no_live_display_with_it(tmp_path):
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE, str(tmp_path / "end")],
        stdin=subprocess.PIPE,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(slave)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(master, 65536)
    os.close(master)
    _, errors = process.communicate(b"\n", timeout=60)
    assert process.returncode == 0, errors
    assert (tmp_path / "end").read_text() == "ended"
