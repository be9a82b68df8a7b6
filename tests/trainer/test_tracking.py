"""What a run writes while it trains, and what is left of it after a crash and a resume."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.trainer import jsonl
from verl_core.trainer.tracking import Tracker
from verl_reward_sdk import ConfigError, VerlRewardError


def steps_of(path: Path) -> list[int]:
    return [record["step"] for record in jsonl.read(path)]


def test_each_step_is_one_line_that_is_there_at_once(tmp_path: Path) -> None:
    with Tracker(tmp_path, tensorboard=False) as tracker:
        tracker.log(1, {"reward/fused/mean": np.float64(0.5), "response/length_mean": np.int64(7)})
        first = json.loads((tmp_path / "metrics.jsonl").read_text())
        tracker.log(2, {"reward/fused/mean": 0.75})
    assert first == {"step": 1, "reward/fused/mean": 0.5, "response/length_mean": 7}
    assert steps_of(tmp_path / "metrics.jsonl") == [1, 2]


def test_a_mean_of_no_rows_is_null_and_the_line_stays_strict_json(tmp_path: Path) -> None:
    with Tracker(tmp_path, tensorboard=False) as tracker:
        tracker.log(1, {"reward/tone/mean": math.nan, "actor/loss": float("inf")})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert line == {"step": 1, "reward/tone/mean": None, "actor/loss": None}


def test_samples_keep_their_text_whatever_it_is(tmp_path: Path) -> None:
    texts = ["你好 👋", "a\u2028b\nc", "\ud800 alone", '"quoted" <b>', ""]
    with Tracker(tmp_path, tensorboard=False) as tracker:
        tracker.samples(3, [{"sample_id": str(i), "response": t} for i, t in enumerate(texts)])
    rows = list(jsonl.read(tmp_path / "samples.jsonl"))
    assert [row["response"] for row in rows] == texts
    assert {row["step"] for row in rows} == {3}


def test_resuming_drops_what_was_written_after_the_checkpoint(tmp_path: Path) -> None:
    with Tracker(tmp_path, tensorboard=False) as tracker:
        for step in range(1, 8):
            tracker.log(step, {"actor/loss": step})
            tracker.samples(step, [{"sample_id": f"{step}-a"}, {"sample_id": f"{step}-b"}])
    with Tracker(tmp_path, start_step=4, tensorboard=False) as tracker:
        assert steps_of(tmp_path / "metrics.jsonl") == [1, 2, 3, 4]
        tracker.log(5, {"actor/loss": 50})
    assert steps_of(tmp_path / "metrics.jsonl") == [1, 2, 3, 4, 5]
    assert steps_of(tmp_path / "samples.jsonl") == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


def test_a_new_run_in_an_old_folder_starts_with_empty_files(tmp_path: Path) -> None:
    with Tracker(tmp_path, tensorboard=False) as tracker:
        tracker.log(1, {"actor/loss": 1.0})
    with Tracker(tmp_path, tensorboard=False):
        assert steps_of(tmp_path / "metrics.jsonl") == []


def test_a_torn_last_line_is_passed_over_and_goes_with_the_next_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3, "act')
    assert steps_of(path) == [1, 2]
    with Tracker(tmp_path, start_step=3, tensorboard=False) as tracker:
        tracker.log(4, {})
    assert steps_of(path) == [1, 2, 4]


def test_a_broken_line_in_the_middle_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\nnot json\n{"step": 3}\n')
    with pytest.raises(VerlRewardError, match=r"metrics\.jsonl:2: expected one JSON object"):
        list(jsonl.read(path))


def test_a_killed_run_leaves_every_finished_step(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from verl_core.trainer.tracking import Tracker\n"
        "tracker = Tracker(Path(sys.argv[1]), tensorboard=False)\n"
        "for step in range(1, 51):\n"
        "    tracker.log(step, {'actor/loss': step / 7, 'text': 'x' * 5000})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert steps_of(tmp_path / "metrics.jsonl") == list(range(1, 51))


def test_tensorboard_gets_every_finite_figure_and_forgets_the_steps_that_come_again(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Tracker(tmp_path) as tracker:
        for step in range(1, 6):
            tracker.log(step, {"actor/loss": 1.0, "reward/x/mean": math.nan, "time": "now"})
    with Tracker(tmp_path, start_step=3) as tracker:
        tracker.log(4, {"actor/loss": 2.0})
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert board.Tags()["scalars"] == ["actor/loss"]
    seen = [(event.step, event.value) for event in board.Scalars("actor/loss")]
    assert seen == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]


def test_tensorboard_that_is_not_installed_is_named_or_left_out_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An entry of None is how Python itself marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"tracking\.tensorboard.*pip install tensorboard"):
        Tracker(tmp_path)
    with Tracker(tmp_path, tensorboard="auto") as tracker:
        tracker.log(1, {"actor/loss": 1.0})
    assert steps_of(tmp_path / "metrics.jsonl") == [1]


def test_chosen_rows_go_from_the_worst_to_the_best(tmp_path: Path) -> None:
    with Tracker(tmp_path, tensorboard=False, samples_per_step=3) as tracker:
        assert tracker.choose([0.5, 0.1, math.nan, 0.9, 0.4]) in {(0, 1, 3), (1, 3, 4)}
        assert tracker.choose([math.nan, 0.2]) == (0, 1)
        assert tracker.choose([]) == ()


@given(
    fused=st.lists(st.floats(allow_infinity=False), max_size=20),
    count=st.integers(min_value=0, max_value=6),
)
def test_chosen_rows_are_distinct_and_hold_the_extremes(
    tmp_path_factory: pytest.TempPathFactory, fused: list[float], count: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with Tracker(folder, tensorboard=False, samples_per_step=count) as tracker:
        rows = tracker.choose(fused)
    assert len(rows) == len(set(rows)) == min(count, len(fused))
    known = [value for value in fused if not math.isnan(value)]
    if count >= 2 and len(known) >= 2:
        shown = [fused[row] for row in rows]
        assert min(known) in shown
        assert max(known) in shown


_FULL = """
import resource, sys
from pathlib import Path
from verl_core.trainer.tracking import Tracker
from verl_reward_sdk import VerlRewardError
tracker = Tracker(Path(sys.argv[1]), tensorboard=False)
write = {
    "log": lambda step: tracker.log(step, {"text": "x" * 5000}),
    "samples": lambda step: tracker.samples(step, [{"text": "x" * 2000}, {"text": "y" * 3000}]),
}[sys.argv[2]]
write(1)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, hard))  # the next lines fit in part, as on a disk
try:
    write(2)
except VerlRewardError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
write(3)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize(("what", "lines"), [("log", 1), ("samples", 2)])
def test_lines_that_a_full_disk_takes_in_part_are_taken_back_and_told(
    tmp_path: Path, what: str, lines: int
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path), what], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    path = tmp_path / ("metrics.jsonl" if what == "log" else "samples.jsonl")
    assert ended.stdout.startswith(f"{path}: ")
    assert "bytes could not be written: File too large" in ended.stdout
    assert steps_of(path) == [1] * lines + [3] * lines


def test_a_rewrite_that_a_full_disk_stops_leaves_the_old_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(jsonl.encode({"step": n, "x": "x" * 900}) for n in range(9)))
    old = path.read_bytes()
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(VerlRewardError, match=r"metrics\.jsonl: 8\d+ bytes could not"):
            jsonl.keep(path, lambda record: True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_nested_without_end_becomes_a_line_all_the_same(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with Tracker(tmp_path, tensorboard=False) as tracker:
        tracker.samples(1, [{"explain": deep}])
    text = (tmp_path / "samples.jsonl").read_text("utf-8")
    assert "…" in text
    assert steps_of(tmp_path / "samples.jsonl") == [1]


def test_a_line_that_is_too_deep_to_read_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"x": ' + b"[" * 90_000 + b"]" * 90_000 + b"}\n")
    with pytest.raises(VerlRewardError, match=r"metrics\.jsonl:1: expected one JSON object"):
        list(jsonl.read(path))
