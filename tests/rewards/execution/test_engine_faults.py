"""Faults of providers, through the whole engine, with real worker processes."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time

import pytest

from verl_reward_sdk import ConfigError, RewardError

LENIENT = {"on_error": "abstain", "max_error_rate": 1.0}
PROCESS = {"plugin": "orders", "execution": "process", "timeout": 60.0}

pytestmark = pytest.mark.usefixtures("deeds")


def deed(does, **keys):
    """A mount that does the same to every batch."""
    kwargs = {"does": does, **keys.pop("init_kwargs", {})}
    return {"type": does, "plugin": "deed", "init_kwargs": kwargs, **keys}


@pytest.fixture
def step(make_batch):
    """A batch of a training step whose rows give orders."""
    return lambda *orders, **fields: make_batch(*orders, training=True, step=1, **fields)


def column(built, batch, name="m"):
    return built.score(batch).columns[name]


@pytest.mark.timeout(900)
def test_five_mounts_that_misbehave_run_beside_a_healthy_one_for_eight_batches(
    engine, step, tmp_path, gone, our_children
):
    """reliability: a mount that hangs, one that segfaults, one that leaks a grandchild, one that
    holds the GIL, one that returns the wrong length."""
    note = tmp_path / "pids"
    bad = {"execution": "process", "timeout": 0.3, "queue_timeout": 60.0, **LENIENT}
    built = engine(
        deed("hang", **bad),
        deed("segfault", **{**bad, "timeout": 60.0}),
        deed("grandchild", **{**bad, "timeout": 1.0}, init_kwargs={"note": str(note)}),
        deed("hold_the_gil", **bad),
        deed("short", **{**bad, "timeout": 60.0}),
        deed("well", execution="thread", weight=2.0),
    )
    built.setup()
    for number in range(8):
        table = built.score(step("a" * number, "bb", "ccc"))
        assert table.fused.tolist() == [2 * number / 100, 2 * 2 / 100, 2 * 3 / 100]
        assert table.columns["well"].status.tolist() == ["ok"] * 3
        said = {name: column.reasons[0] for name, column in table.columns.items()}
        assert said.pop("well") is None
        assert said["short"] == ("short (deed): scores has a wrong length: got 2, expected 3 rows")
        assert "SIGSEGV" in said["segfault"]
        for name, seconds in (("hang", 0.3), ("grandchild", 1), ("hold_the_gil", 0.3)):
            assert said[name] == f"no answer within timeout: {seconds:g} s; its worker was killed"
        assert table.metrics()["reward/hang/failed"] == 1.0
    shown = {one["name"]: one for one in built.describe()}
    assert shown["hang"]["restarts"] >= 7
    assert shown["short"]["restarts"] == 0
    assert shown["short"]["failures"] == 24
    assert shown["well"]["state"] == "ready"
    pids = [int(line) for line in note.read_text(encoding="utf-8").split()]
    assert len(pids) >= 2  # a worker and its grandchild, each time they came so far
    built.close()
    assert all(gone(pid) for pid in pids)
    assert our_children() == []


def test_a_catastrophic_regular_expression_costs_nothing(engine, step, tmp_path):
    """reliability 42."""
    (tmp_path / "rules.yaml").write_text(
        "rules: [{name: evil, regex: '^(a+)+$', points: 1}]", encoding="utf-8"
    )
    built = engine(
        {
            "type": "m",
            "plugin": "rules",
            "execution": "process",
            "timeout": 30.0,
            "init_kwargs": {"rules": str(tmp_path / "rules.yaml")},
        }
    )
    table = built.score(step("a" * 20_000 + "!", "a" * 20_000))
    assert table.columns["m"].scores.tolist() == [0.0, 1.0]


def test_a_provider_that_holds_the_gil_is_killed_at_its_deadline(engine, step, gone):
    """reliability 44."""
    built = engine({"type": "m", **PROCESS, "timeout": 1.0, "queue_timeout": 60.0, **LENIENT})
    first = int(column(built, step("pid")).scores[0])
    hung = column(built, step("hold_the_gil", "score 1"))
    assert hung.reasons == ("no answer within timeout: 1 s; its worker was killed",) * 2
    second = int(column(built, step("pid")).scores[0])
    assert second != first
    assert gone(first)
    assert built.describe()[0]["restarts"] == 1


@pytest.mark.parametrize("how", ["here", "away"])
def test_a_grandchild_is_killed_with_its_worker(engine, step, gone, read_number, tmp_path, how):
    """reliability 45."""
    built = engine({"type": "m", **PROCESS, "timeout": 3.0, "queue_timeout": 60.0, **LENIENT})
    assert column(built, step("score 1")).scores.tolist() == [1.0]
    failed = column(built, step(f"beget {tmp_path / 'pid'} {how} sleep"))
    assert failed.status.tolist() == ["failed"]
    assert gone(read_number(tmp_path / "pid"))


def test_a_worker_killed_while_it_holds_a_lock_takes_nobody_with_it(
    engine, step, read_number, tmp_path
):
    """reliability 46: two workers; the one that holds the lock is killed from outside."""
    built = engine({"type": "m", **PROCESS, "workers": 2, **LENIENT})
    built.setup()
    path = tmp_path / "pid"
    tables = {}
    holder = threading.Thread(target=lambda: tables.update(a=built.score(step(f"tell {path}"))))
    holder.start()
    os.kill(read_number(path), signal.SIGKILL)
    free = column(built, step(f"lock {path}", "score 2"))
    holder.join(60)
    assert free.scores.tolist() == [1.0, 2.0]
    assert "SIGKILL" in tables["a"].columns["m"].reasons[0]
    again = [column(built, step("score 3")).scores.tolist() for _ in range(3)]
    assert again == [[3.0]] * 3
    end = time.monotonic() + 60
    while built.describe()[0]["restarts"] == 0 and time.monotonic() < end:
        time.sleep(0.01)
    assert (built.describe()[0]["workers"], built.describe()[0]["restarts"]) == (2, 1)


def test_when_every_provider_times_out_the_step_raises_and_nothing_scores_zero(engine, step):
    """reliability 47; what the trainer makes of it is tested with the trainer."""
    mounts = [
        {"type": name, **PROCESS, "timeout": 0.3, "queue_timeout": 60.0} for name in ("a", "b")
    ]
    built = engine(*mounts)
    built.setup()
    with pytest.raises(RewardError, match=r"step 1.*a: 2 of 2 rows failed.*b: 2 of 2") as raised:
        built.score(step("sleep", "sleep"))
    assert "no answer within timeout: 0.3 s" in str(raised.value)
    mounts = [{**mount, **LENIENT} for mount in mounts]
    table = engine(*mounts).score(step("sleep", "sleep"))
    assert all(math.isnan(value) for value in table.fused.tolist())
    assert table.masked.tolist() == [True, True]
    assert table.mask_reason == ("no reward", "no reward")


def test_an_exception_fails_its_rows_with_reason_and_metric(engine, step, caplog):
    """reliability 48."""
    built = engine({"type": "m", **PROCESS, **LENIENT}, deed("well"))
    table = built.score(step("raise", "score 1"))
    assert table.columns["m"].reasons == ("ZeroDivisionError: one by none",) * 2
    assert table.metrics()["reward/m/failed"] == 1.0
    assert built.describe()[0]["last_error"] == "ZeroDivisionError: one by none"
    assert "ZeroDivisionError" in caplog.text
    assert table.fused.tolist() == table.columns["well"].scores.tolist()


def test_a_missing_row_is_neutral_in_its_group_and_a_missing_group_in_the_step(engine, make_batch):
    """reliability 49: no advantage comes of an abstention."""
    built = engine(
        {"type": "m", "plugin": "rows", "execution": "process"}, deed("well", weight=0.5)
    )
    batch = make_batch(
        *("1", "none", "3", "none", "none", "8"),
        training=True,
        step=1,
        group_ids=["x", "x", "x", "y", "y", "z"],
    )
    table = built.score(batch)
    assert table.columns["m"].normalised.tolist() == [1.0, 2.0, 3.0, 4.0, 4.0, 8.0]
    other = table.columns["well"].scores
    assert table.fused.tolist() == [
        m + 0.5 * float(s) for m, s in zip([1.0, 2.0, 3.0, 4.0, 4.0, 8.0], other, strict=True)
    ]


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        (["skip", "score 1", "score nan"], r"m \(orders\): row 2: .*not finite: got nan"),
        (["skip", "score 1", "infinite"], r"m \(orders\): row 2: .*not finite: got inf"),
        (["skip", "function", "score 1"], r"m \(orders\): row 1: the score is no number"),
    ],
)
def test_a_broken_contract_names_the_row_of_the_batch_and_the_value(engine, step, orders, said):
    """reliability 50: the rows are those of the batch, though the mount saw only some of them."""
    built = engine({"type": "m", **PROCESS, "applies_to": "keep == 1", "on_error": "raise"})
    batch = step(*orders, columns={"keep": [int(order != "skip") for order in orders]})
    with pytest.raises(RewardError, match=said):
        built.score(batch)


@pytest.mark.parametrize("execution", ["process", "async", "thread"])
def test_several_event_loops_and_threads_share_an_engine(engine, make_batch, execution):
    """reliability 60."""
    if execution == "async":
        mount = {"type": "m", "plugin": "later"}
        give, expected = "a", 1.0
    else:
        mount = {"type": "m", **PROCESS, "execution": execution}
        give, expected = "score 1", 1.0
    built = engine(mount)

    async def several():
        return await asyncio.gather(*(built.ascore(make_batch(give)) for _ in range(4)))

    seen = []

    def other():
        seen.extend(asyncio.run(several()))

    threads = [threading.Thread(target=other) for _ in range(2)]
    for thread in threads:
        thread.start()
    seen += asyncio.run(several())
    seen.append(built.score(make_batch(give)))
    for thread in threads:
        thread.join(60)
    assert [table.fused.tolist() for table in seen] == [[expected]] * 13


def test_scores_are_the_same_bits_in_a_worker(engine, make_batch):
    orders = [f"score {1 / number!r}" for number in range(1, 50)]
    tables = [
        engine({"type": "m", **PROCESS, "execution": place, "weight": 0.1}).score(
            make_batch(*orders)
        )
        for place in ("inline", "thread", "process")
    ]
    assert tables[0].fused.tobytes() == tables[1].fused.tobytes() == tables[2].fused.tobytes()


def test_a_worker_that_cannot_be_set_up_refuses_to_start_and_names_the_mount(engine):
    built = engine({"type": "m", **PROCESS, "init_kwargs": {"options": {"refuses": True}}})
    with pytest.raises(ConfigError, match=r"words.txt:3.*no such word list \(write one\)"):
        built.setup()


def test_a_plugin_that_the_environment_keeps_out_stays_out_of_the_worker_too(engine, monkeypatch):
    built = engine({"type": "m", **PROCESS})
    monkeypatch.setenv("VERL_REWARD_PLUGINS", "rules")
    with pytest.raises(ConfigError, match=r"'orders'.*disabled: VERL_REWARD_PLUGINS lists only"):
        built.setup()


def test_closing_an_engine_leaves_no_worker_no_thread_and_no_descriptor(
    engine, step, our_descriptors, our_children
):
    def once():
        built = engine(
            {"type": "m", **PROCESS, "workers": 2, "host": {"name": "tests", "concurrency": 1}},
            {"type": "n", **PROCESS, "execution": "thread", "retries": 1},
            {"type": "o", "plugin": "later", "breaker": {}, "cache": {}},
        )
        built.score(step("score 1", "score 2"))
        built.close()

    once()
    threads, descriptors = set(threading.enumerate()), our_descriptors()
    for _ in range(3):
        once()
    assert set(threading.enumerate()) <= threads
    assert our_descriptors() == descriptors
    assert our_children() == []
