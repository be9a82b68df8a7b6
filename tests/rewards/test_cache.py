"""Cached scores: what counts as the same row, what is kept and for how long, and bad files."""

from __future__ import annotations

import itertools
import logging
import math
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.rewards.answer import Answer
from verl_core.rewards.cache import RowCache, Split, asset_digests, cache_scope, code_version
from verl_core.rewards.cache.keys import Unkeyable, encode, row_keys
from verl_core.rewards.statuses import ABSTAINED, FAILED, OK, PENALTY, VETO
from verl_core.rewards.tokens import Spans
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError

SCOPE = b"scope"


def batch(*responses: str, **fields: Any) -> RewardBatch:
    defaults: dict[str, Any] = {
        "sample_ids": [f"s{i}" for i in range(len(responses))],
        "prompts": ["question"] * len(responses),
    }
    return RewardBatch(responses=responses, **{**defaults, **fields})


def answer(scores: Sequence[float], codes: Sequence[int] | None = None, **fields: Any) -> Answer:
    """Of rows that are all scored, unless `codes` says otherwise."""
    return Answer(
        np.array(scores, dtype=np.float64),
        np.array(codes or [OK] * len(scores), dtype=np.int8),
        **fields,
    )


def score_all(cache: RowCache, rows: RewardBatch, score: Callable[[str], float]) -> Answer:
    """As a mount would: look up, ask about the rest, keep, join."""
    split = cache.split(rows, SCOPE)
    fresh = None
    if len(split.ask):
        asked = rows.take(split.ask.tolist())
        fresh = answer([score(text) for text in asked.responses])
        cache.put(split, fresh)
    return split.joined(fresh)[0]


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Caches in memory, or on one file; closed when the test ends."""
    made: list[RowCache] = []

    def build(rows: int = 1000) -> RowCache:
        path = tmp_path / "cache" / "scores.db" if request.param == "sqlite" else None
        made.append(RowCache(rows, path))
        return made[-1]

    yield build
    for cache in made:
        cache.close()


# -- keys -----------------------------------------------------------------------------------------

DIFFERENT: list[Any] = [
    None,
    False,
    True,
    0,
    1,
    -1,
    255,
    256,
    2**80,
    0.0,
    -0.0,
    1.0,
    1j,
    "1",
    "",
    "None",
    b"1",
    b"",
    "\ud800",
    [],
    [1],
    [[1]],
    [[], 1],
    [1, []],
    ["ab", "c"],
    ["a", "bc"],
    ["abc"],
    (),
    (1,),
    {},
    {"a": 1},
    {"a": "1"},
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {"a": {"b": 2}},
    {1: "a"},
    set(),
    {1, 2},
    frozenset({1, 2}),
    np.array([1, 2]),
    np.array([1, 2], dtype=np.int32),
    np.array([1.0, 2.0]),
    np.array([[1, 2]]),
    np.array([[1], [2]]),
    np.array([], dtype=np.int64),
    np.array(1),
    np.array(["a", "b"]),
    np.array(["a", "b"], dtype=object),
    np.array([1, "1"], dtype=object),
    np.int64(1),
    np.int32(1),
    np.float64(1),
    np.float32(1),
    np.bool_(True),
    np.str_("1"),
    np.datetime64("2024-01-01"),
]


def test_no_two_different_values_are_written_alike() -> None:
    written = [encode(value) for value in DIFFERENT]
    for (i, one), (j, two) in itertools.combinations(enumerate(written), 2):
        assert one != two, (DIFFERENT[i], DIFFERENT[j])


def plain() -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(st.text(max_size=3), inner, max_size=4),
        ),
        max_leaves=12,
    )


@settings(max_examples=400, deadline=None)
@given(one=plain(), two=plain())
def test_values_are_written_alike_only_where_their_repr_is(one: Any, two: Any) -> None:
    assert (encode(one) == encode(two)) == (repr(one) == repr(two))


def test_equal_arrays_are_written_alike_however_they_lie_in_memory() -> None:
    array = np.arange(12).reshape(3, 4)
    assert encode(array) == encode(np.asfortranarray(array)) == encode(array[::-1][::-1])
    assert encode({3, 1, 2}) == encode({2, 3, 1})


@pytest.mark.parametrize(
    "value",
    [
        object(),
        OrderedDict(a=1),
        bytearray(b"1"),
        [lambda: 1],
        {"a": {"b": Path("x")}},
        np.zeros(1, dtype=[("a", "i4")]),
        np.ma.masked_array([1, 2], mask=[0, 1]),
    ],
)
def test_values_that_hide_something_are_not_keyed(value: Any) -> None:
    with pytest.raises(Unkeyable, match="there is a"):
        encode(value)


def test_a_value_that_holds_itself_is_not_keyed() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(Unkeyable, match="nested more than 64 deep"):
        encode(circle)


def row(**fields: Any) -> RewardBatch:
    return batch("answer", **{key: value and [value] for key, value in fields.items()})


def key_of(rows: RewardBatch, scope: bytes = SCOPE, *, tokens: bool = False) -> bytes | None:
    (key,) = row_keys(rows, scope, tokens=tokens)
    return key


def test_what_a_provider_may_read_of_a_row_is_in_its_key() -> None:
    turn = {"role": "user", "content": "question"}
    rows = [
        row(),
        batch("another answer", responses_raw=["answer"]),
        row(prompts="another question"),
        row(prompts=[turn]),
        row(responses_raw="<think>no</think>answer"),
        row(finish_reason="length"),
        row(trajectories=[turn]),
        batch("answer", columns={"a": ["1"]}),
        batch("answer", columns={"a": [1]}),
        batch("answer", columns={"b": [1]}),
        batch("answer", columns={"a": [1], "b": [None]}),
    ]
    keys = [key_of(one) for one in rows] + [key_of(row(), b"another scope")]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_what_is_no_content_is_not_in_the_key() -> None:
    plain_row = batch("answer", columns={"a": [1], "b": [2]})
    for fields in (
        {"sample_ids": ["other"]},
        {"group_ids": ["g"]},
        {"step": 7},
        {"policy_version": 3},
        {"training": True},
        {"columns": {"b": [2], "a": [1]}},
    ):
        assert key_of(replace(plain_row, **fields)) == key_of(plain_row)
    two = batch("x", "answer", columns={"a": [0, 1], "b": [0, 2]})
    assert row_keys(two, SCOPE, tokens=False)[1] == key_of(plain_row)


def test_token_ids_count_where_token_scores_do() -> None:
    one, two = (row(response_ids=np.array([i])) for i in (1, 2))
    masked = row(response_ids=np.array([1]), response_mask=np.array([0]))
    assert key_of(one) == key_of(two) == key_of(row())
    assert len({key_of(r, tokens=True) for r in (one, two, masked, row())}) == 4


def test_the_scope_holds_provider_code_config_and_generation() -> None:
    base = {"provider": "p", "code": "c 1", "config": {"a": 1}, "generation": 1, "path": "reward.p"}
    others = [
        base,
        base | {"provider": "q"},
        base | {"code": "c 2"},
        base | {"config": {"a": 1.0}},
        base | {"generation": 2},
    ]
    scopes = {cache_scope(**some) for some in others}
    assert len(scopes) == len(others)
    assert cache_scope(**base | {"path": "reward.q"}) in scopes
    with pytest.raises(ConfigError, match=r"reward.p.cache: .* there is a object in it"):
        cache_scope(**base | {"config": {"a": object()}})


def test_another_state_of_the_code_or_of_an_asset_is_another_version(tmp_path: Path) -> None:
    assert code_version(Answer, "d 1") != code_version(Answer, "d 2")
    assert code_version(Answer) == code_version(Answer) != code_version(Split)
    folder, file = tmp_path / "model", tmp_path / "words.txt"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "weights").write_bytes(b"12")
    file.write_text("a")
    before = asset_digests([folder, file])
    assert [path for path, _ in before] == [str(folder), str(file)]
    (folder / "sub" / "weights").write_bytes(b"13")
    after = asset_digests([folder, file])
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)
    os.rename(folder / "sub", folder / "other")
    assert asset_digests([folder])[0] != after[0]


def test_code_of_a_class_without_a_file_has_its_name_only() -> None:
    made = type("Made", (), {"__module__": "no_such_module"})
    assert code_version(made) == " no_such_module.Made "


# -- rows -----------------------------------------------------------------------------------------


def test_a_row_is_scored_once_and_its_score_keeps_all_bits(make: Any) -> None:
    cache, asked = make(), []
    values = {"a": 0.1 + 0.2, "b": -0.0, "c": 5e-324, "d": 1.7976931348623157e308}

    def score(text: str) -> float:
        asked.append(text)
        return values[text]

    first = score_all(cache, batch(*values), score)
    again = score_all(cache, batch(*reversed(values)), score)
    assert asked == list(values)
    assert again.scores.tobytes() == first.scores[::-1].tobytes()
    assert again.ok.all()
    figures = cache.figures()
    assert (figures.rows, figures.hits, figures.kept, figures.unkeyed) == (8, 4, 4, 0)


def test_rows_of_one_content_are_asked_about_once(make: Any) -> None:
    cache = make()
    split = cache.split(batch("a", "b", "a", "c", "b"), SCOPE)
    assert split.ask.tolist() == [0, 1, 3]
    assert split.hit_rate == pytest.approx(0.4)
    fresh = answer([1.0, 2.0, math.nan], [OK, OK, FAILED], reasons={1: "two", 2: "broke"})
    joined, _ = split.joined(fresh)
    assert joined.scores.tolist()[:3] == [1.0, 2.0, 1.0]
    assert joined.codes.tolist() == [OK, OK, OK, FAILED, OK]
    assert joined.reasons == {1: "two", 4: "two", 3: "broke"}


def test_everything_that_a_provider_said_comes_back(make: Any) -> None:
    cache = make()
    spans = Spans(np.array([0, 2]), np.array([2, 5]), np.array([0.1, 0.2]))
    tokens = [np.array([0.25, -0.0, 1 / 3]), spans, None]
    fresh = answer(
        [0.5, 0.3, 1.0],
        words=np.array([0, PENALTY, VETO], dtype=np.int8),
        reasons={1: "说了“不”\n\x00"},
        extras={"length": np.array([3.0, math.nan, math.inf])},
        seconds=2.0,
    )
    rows = batch("a", "b", "c")
    split = cache.split(rows, SCOPE)
    cache.put(split, fresh, tokens)

    new = batch("c", "d", "b", "a")
    split = cache.split(new, SCOPE)
    assert split.ask.tolist() == [1]
    joined, back = split.joined(answer([9.0], extras={"other": np.array([1.0])}, seconds=0.5))
    assert joined.scores.tolist() == [1.0, 9.0, 0.3, 0.5]
    assert joined.words is not None
    assert joined.words.tolist() == [VETO, 0, PENALTY, 0]
    assert joined.reasons == {2: "说了“不”\n\x00"}
    assert np.array_equal(
        joined.extras["length"], [math.inf, math.nan, math.nan, 3.0], equal_nan=True
    )
    assert np.array_equal(joined.extras["other"], [np.nan, 1, np.nan, np.nan], equal_nan=True)
    assert joined.seconds == 0.5
    assert back is not None
    assert back[:2] == [None, None]
    assert (back[2].starts.tolist(), back[2].ends.tolist()) == ([0, 2], [2, 5])
    assert back[2].scores.tolist() == [0.1, 0.2]
    assert back[3].tobytes() == tokens[0].tobytes()


def test_a_batch_that_is_all_known_asks_nobody(make: Any) -> None:
    cache = make()
    score_all(cache, batch("a", "b"), lambda text: 1.0)
    split = cache.split(batch("b", "a"), SCOPE)
    assert split.hit_rate == 1.0
    joined, tokens = split.joined(None)
    assert joined.scores.tolist() == [1.0, 1.0]
    assert (joined.words, tokens, joined.seconds) == (None, None, 0.0)


def test_an_empty_batch_has_no_hit_rate(make: Any) -> None:
    split = make().split(batch(), SCOPE)
    assert (split.hit_rate, len(split.ask)) == (0.0, 0)
    assert len(split.joined(None)[0].scores) == 0


def test_failures_and_abstentions_are_never_kept(make: Any) -> None:
    cache, rows = make(), batch("ok", "failed", "abstained")
    split = cache.split(rows, SCOPE)
    cache.put(split, answer([1.0, math.nan, math.nan], [OK, FAILED, ABSTAINED]))
    assert cache.split(rows, SCOPE).ask.tolist() == [1, 2]
    assert cache.figures().kept == 1


def test_rows_with_odd_values_are_asked_about_every_time(make: Any) -> None:
    cache = make()
    rows = batch("a", "a", "b", columns={"extra": [object(), object(), 1]})
    for ask in ([0, 1, 2], [0, 1]):
        split = cache.split(rows, SCOPE)
        assert split.ask.tolist() == ask
        cache.put(split, answer([1.0] * len(ask)))
    assert cache.figures().unkeyed == 4


def test_another_generation_hits_nothing_of_the_old_one(make: Any) -> None:
    cache, rows = make(), batch("a")
    cache.put(cache.split(rows, b"generation 1"), answer([1.0]))
    assert len(cache.split(rows, b"generation 2").ask) == 1
    cache.put(cache.split(rows, b"generation 2"), answer([2.0]))
    # A lease that still holds the old one gets the old one's score.
    assert cache.split(rows, b"generation 1").joined(None)[0].scores.tolist() == [1.0]
    assert cache.split(rows, b"generation 2").joined(None)[0].scores.tolist() == [2.0]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=12), max_size=8),
    bound=st.integers(1, 12),
)
def test_a_cache_never_changes_a_score(texts: list[list[str]], bound: int) -> None:
    cache = RowCache(bound)
    for some in texts:
        got = score_all(cache, batch(*some), lambda text: ord(text) / 7)
        assert got.scores.tolist() == [ord(text) / 7 for text in some]
        assert cache.figures().kept <= bound


# -- bounds ---------------------------------------------------------------------------------------


def numbered(start: int, stop: int) -> RewardBatch:
    return batch(*(f"answer {i}" for i in range(start, stop)))


@pytest.mark.parametrize("bound", [1, 7, 100])
def test_the_bound_holds_after_every_batch(make: Any, bound: int) -> None:
    cache = make(bound)
    for start in range(0, 400, 40):
        score_all(cache, numbered(start, start + 40), lambda text: 1.0)
        assert 0 < cache.figures().kept <= bound


def test_memory_drops_the_longest_unused_row() -> None:
    cache = RowCache(2)
    for texts in (["a"], ["b"], ["a"], ["c"]):
        score_all(cache, batch(*texts), lambda text: 1.0)
    assert cache.split(batch("a", "b", "c"), SCOPE).ask.tolist() == [1]


def test_a_file_drops_the_longest_unused_rows(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    cache = RowCache(100, path)
    score_all(cache, numbered(0, 100), lambda text: 1.0)
    with sqlite3.connect(path) as other:  # all but the last ten were used long ago
        other.execute("UPDATE rows SET used = 1000")
    other.close()
    assert len(cache.split(numbered(90, 100), SCOPE).ask) == 0
    score_all(cache, numbered(100, 150), lambda text: 1.0)
    assert len(cache.split(numbered(90, 150), SCOPE).ask) == 0
    assert cache.figures().kept == 95
    cache.close()


def test_memory_stays_flat_once_the_bound_is_reached() -> None:
    cache = RowCache(500)
    for turn in range(20):
        score_all(cache, numbered(turn * 100, turn * 100 + 100), lambda text: 1.0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for turn in range(20, 220):
            score_all(cache, numbered(turn * 100, turn * 100 + 100), lambda text: 1.0)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 500 * 1000  # the 500 rows are new ones, and were not traced before


def test_a_files_size_stays_flat_once_the_bound_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    cache = RowCache(500, path)

    def fill(turns: range) -> int:
        for turn in turns:
            score_all(cache, numbered(turn * 100, turn * 100 + 100), lambda text: 1.0)
        return sum(file.stat().st_size for file in tmp_path.iterdir())

    early = fill(range(60))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert fill(range(60, 260)) < 1.5 * early
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + 20_000  # KiB
    cache.close()


def test_threads_may_share_a_cache(make: Any) -> None:
    cache, wrong = make(50), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            picked = rng.integers(0, 80, size=20).tolist()
            got = score_all(cache, batch(*map(str, picked)), float)
            if got.scores.tolist() != [float(i) for i in picked]:
                wrong.append(picked)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.figures().rows == 4 * 30 * 20
    assert cache.figures().kept <= 50


# -- files ----------------------------------------------------------------------------------------

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


def test_a_closed_cache_knows_nothing(make: Any) -> None:
    cache = make()
    score_all(cache, batch("a"), lambda text: 1.0)
    cache.close()
    assert cache.split(batch("a"), SCOPE).hit_rate == 0.0


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
