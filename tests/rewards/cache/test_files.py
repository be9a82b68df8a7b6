"""Files of cached scores: several processes, kills, damage, locks and full disks."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rewards.cache.conftest import SCOPE, batch, numbered, score_all
from verl_core.rewards.cache import RowCache
from verl_core.rewards.weights import WeightStore
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError

# -- processes ------------------------------------------------------------------------------------


_WORKER = """
import sys
from pathlib import Path
import numpy as np
from verl_core.rewards.answer import Answer
from verl_core.rewards.cache import RowCache
from verl_reward_sdk.batch import RewardBatch

path, bound, first, turns = Path(sys.argv[1]), *map(int, sys.argv[2:])
cache = RowCache(bound, path)
print("ready", flush=True)
sys.stdin.readline()
turn = 0
while turn != turns:
    texts = [str(first + turn * 20 + i) for i in range(20)]
    batch = RewardBatch(sample_ids=texts, prompts=texts, responses=texts)
    split = cache.split(batch, b"scope")
    scores = np.array([float(texts[i]) for i in split.ask])
    cache.put(split, Answer(scores, np.zeros(len(scores), dtype=np.int8)))
    joined, _ = split.joined(Answer(scores, np.zeros(len(scores), dtype=np.int8)))
    assert joined.scores.tolist() == [float(text) for text in texts]
    assert cache.figures().kept <= bound
    turn += 1
    print(turn, flush=True)
cache.close()
"""


def worker(path: Path, bound: int, first: int, turns: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(path), str(bound), str(first), str(turns)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def own_rows(start: int, stop: int) -> RewardBatch:
    """The rows that `worker` scores."""
    texts = [str(i) for i in range(start, stop)]
    return batch(*texts, prompts=texts)


def test_a_file_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    process = worker(path, 1000, 0, 2)
    _, errors = process.communicate("go\n", timeout=60)
    assert (process.returncode, errors) == (0, "")
    cache = RowCache(1000, path)
    split = cache.split(own_rows(0, 50), SCOPE)
    assert split.ask.tolist() == list(range(40, 50))
    assert split.known[39].score == 39.0
    cache.close()


def test_two_processes_fill_one_file_and_keep_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    both = [worker(path, 200, 0, 30), worker(path, 200, 300, 30)]  # half of their rows are shared
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    cache = RowCache(200, path)
    assert 0 < cache.figures().kept <= 200
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        counted = other.execute("SELECT (SELECT count(*) FROM rows), n FROM size").fetchone()
    other.close()
    assert counted[0] == counted[1] == cache.figures().kept
    cache.close()


def test_a_kill_in_the_middle_of_writing_leaves_whole_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, first = tmp_path / "scores.db", 0
    for turns in (1, 5, 17, 40):
        process = worker(path, 100_000, first, -1)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        for _ in range(turns):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        cache = RowCache(100_000, path)
        split = cache.split(own_rows(first, first + 20 * turns), SCOPE)
        assert len(split.ask) == 0
        assert all(split.known[i].score == first + i for i in range(20 * turns))
        assert cache.figures().kept % 20 == 0
        cache.close()
        first += 1_000_000
    assert caplog.text == ""


# -- damage ---------------------------------------------------------------------------------------


def smash(path: Path, how: str) -> None:
    if how == "garbage":
        path.write_bytes(b"this was a cache " * 400)
    elif how == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    else:  # every page but the first
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(path.stat().st_size - 4096))


@pytest.mark.parametrize("how", ["garbage", "truncated", "pages"])
def test_a_damaged_file_is_moved_aside_and_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    path = tmp_path / "scores.db"
    cache = RowCache(1000, path)
    score_all(cache, numbered(0, 500), lambda text: 1.0)
    cache.close()
    smash(path, how)
    cache = RowCache(1000, path)
    for _ in range(2):
        got = score_all(cache, numbered(0, 500), lambda text: 2.0)
        assert set(got.scores.tolist()) <= {1.0, 2.0}
    assert (got.scores == 2.0).all()
    assert cache.split(numbered(0, 500), SCOPE).hit_rate == 1.0
    cache.close()
    assert (tmp_path / "scores.db.damaged").exists()
    assert "are damaged" in caplog.text
    assert "scores.db.damaged" in caplog.text


def test_a_file_that_is_damaged_while_it_is_open_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scores.db"
    caches = [RowCache(1000, path) for _ in range(2)]
    score_all(caches[0], numbered(0, 500), lambda text: 1.0)
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    smash(path, "pages")
    for _ in range(3):
        for cache in caches:
            score_all(cache, numbered(0, 600), lambda text: 1.0)
    for cache in caches:
        assert cache.split(numbered(0, 600), SCOPE).hit_rate == 1.0
        cache.close()
    # The second found that the first had replaced the file, and left the new one where it was.
    assert caplog.text.count("begun anew") == 1


def test_a_row_whose_bytes_were_turned_is_asked_about_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scores.db"
    cache = RowCache(1000, path)
    score_all(cache, batch("a", "b"), lambda text: 0.25)
    with sqlite3.connect(path) as other:
        done = other.execute(
            "UPDATE rows SET value = CAST(replace(value, '0.25', '0.75') AS BLOB)"
            " WHERE key = (SELECT min(key) FROM rows)"
        )
        assert done.rowcount == 1
    other.close()
    assert len(cache.split(batch("a", "b"), SCOPE).ask) == 1
    assert "1 rows are not what was written" in caplog.text
    got = score_all(cache, batch("a", "b"), lambda text: 0.25)
    assert got.scores.tolist() == [0.25, 0.25]
    assert cache.figures().kept == 2
    cache.close()


# -- what cannot be written -----------------------------------------------------------------------


def test_a_locked_file_keeps_nothing_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_core.rewards.cache.sqlite._BUSY_SECONDS", 0.01)
    path = tmp_path / "scores.db"
    cache = RowCache(1000, path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(3):
        got = score_all(cache, batch("a"), lambda text: 1.0)
        assert got.scores.tolist() == [1.0]
    assert cache.figures().kept == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"cached scores in {path}: it could not be written (database is locked): scored anew"
    ]
    other.execute("ROLLBACK")
    other.close()
    score_all(cache, batch("a"), lambda text: 1.0)
    assert cache.split(batch("a"), SCOPE).hit_rate == 1.0
    cache.close()


def test_a_full_disk_keeps_nothing_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = RowCache(100_000, tmp_path / "scores.db")
    score_all(cache, numbered(0, 10), lambda text: 1.0)
    cache._store._connection.execute("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING):
        for turn in range(1, 6):
            score_all(cache, numbered(turn * 1000, turn * 1000 + 1000), lambda text: 1.0)
    assert "full" in caplog.text
    assert len(caplog.records) == 1
    assert cache.split(numbered(0, 10), SCOPE).hit_rate == 1.0
    cache.close()


def test_files_of_others_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()
    content = path.read_bytes()
    with pytest.raises(ConfigError, match="a database of some other program"):
        RowCache(10, path)
    assert path.read_bytes() == content
    newer = tmp_path / "newer.db"
    RowCache(10, newer).close()
    with sqlite3.connect(newer) as change:
        change.execute("PRAGMA user_version = 99")
    change.close()
    with pytest.raises(ConfigError, match="its format is 99"):
        RowCache(10, newer)


def test_a_path_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot keep cached scores in it") as refused:
        RowCache(10, tmp_path / "file" / "scores.db")
    assert "local disk" in str(refused.value)


def test_a_file_beside_weights_that_are_open_is_opened_and_begun_anew(tmp_path: Path) -> None:
    weights = WeightStore({"m": 1.0}, path=tmp_path / "weights.db")  # its sign is on the folder
    path = tmp_path / "scores.db"
    cache = RowCache(10, path)
    score_all(cache, batch("1"), float)
    path.write_bytes(b"not a database" * 100)  # found damaged in mid-run: it is moved aside
    for _ in range(2):
        assert score_all(cache, batch("1", "2"), float).scores.tolist() == [1.0, 2.0]
    cache.close()
    weights.close()


def test_a_lock_that_somebody_holds_for_good_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_core.rewards.cache.sqlite._OPEN_SECONDS", 0.1)
    code = (
        "import fcntl, sys, time\n"
        "lock = open(sys.argv[1], 'w')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "scores.db.lock")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ConfigError, match=r"another process has held .*scores\.db\.lock"):
            RowCache(10, tmp_path / "scores.db")
        holder.kill()
    RowCache(10, tmp_path / "scores.db").close()
