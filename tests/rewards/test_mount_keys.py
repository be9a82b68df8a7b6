"""workers, retries, breaker, host, cache and token scores, through the whole engine."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_reward_sdk import ConfigError, ProviderError

LENIENT = {"on_error": "abstain", "max_error_rate": 1.0}


class Busy:
    """Notes how many calls are under way at once; each waits until it is let go."""

    def __init__(self):
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.go = threading.Event()

    def begin(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def end(self):
        with self.lock:
            self.now -= 1

    def score(self, batch):
        self.begin()
        self.go.wait(60)
        self.end()
        return [1.0] * len(batch)

    async def score_later(self, batch):
        self.begin()
        while not self.go.is_set():
            await asyncio.sleep(0.01)
        self.end()
        return [1.0] * len(batch)

    def reached(self, count):
        """Whether so many calls are under way within 20 seconds."""
        end = time.monotonic() + 20
        while self.now < count and time.monotonic() < end:
            time.sleep(0.01)
        return self.now == count


@pytest.fixture
def busy():
    one = Busy()
    yield one
    one.go.set()


def provider_of(kit, busy, execution):
    if execution == "async":
        return kit.says_later(busy.score_later)
    return kit.says(busy.score, execution="thread", thread_safe=True)


# -- workers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", ["thread", "async"])
def test_workers_is_the_most_calls_at_once(kit, engine, busy, execution):
    built = engine({"type": "m", "provider": provider_of(kit, busy, execution), "workers": 3})
    built.setup()
    with ThreadPoolExecutor(7) as pool:
        tables = [pool.submit(built.score, kit.batch(1)) for _ in range(7)]
        assert busy.reached(3)
        time.sleep(0.1)  # no fourth
        busy.go.set()
        assert [table.result().fused.tolist() for table in tables] == [[1.0]] * 7
    assert busy.most == 3
    assert built.describe()[0]["workers"] == 3


def test_an_async_call_in_line_waits_no_longer_than_queue_timeout_and_no_loop_is_given_up(
    kit, engine, busy
):
    built = engine(
        {
            "type": "m",
            "provider": provider_of(kit, busy, "async"),
            "workers": 1,
            "queue_timeout": 0.2,
            **LENIENT,
        }
    )
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(built.score, kit.batch(1))
        assert busy.reached(1)
        late = built.score(kit.batch(1)).columns["m"]
        assert late.reasons == (
            "not begun within queue_timeout: 0.2 s: 1 calls are under way (workers: 1)",
        )
        busy.go.set()
        assert first.result().fused.tolist() == [1.0]
    assert built.describe()[0]["restarts"] == 0


def test_a_cancelled_async_call_leaves_the_line(kit, engine, busy):
    built = engine({"type": "m", "provider": provider_of(kit, busy, "async"), "workers": 1})

    async def both():
        first = asyncio.create_task(built.ascore(kit.batch(1)))
        while busy.now == 0:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(built.ascore(kit.batch(1)))
        await asyncio.sleep(0.05)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        busy.go.set()
        return await first

    assert asyncio.run(both()).fused.tolist() == [1.0]
    assert built.score(kit.batch(1)).fused.tolist() == [1.0]


def test_closing_ends_the_calls_in_line(kit, busy):
    built = kit.engine(
        {"type": "m", "provider": provider_of(kit, busy, "async"), "workers": 1, **LENIENT}
    )
    with ThreadPoolExecutor(2) as pool:
        tables = [pool.submit(built.score, kit.batch(1)) for _ in range(2)]
        assert busy.reached(1)
        built.close()
        reasons = [table.result(20).columns["m"].reasons for table in tables]
    assert reasons == [("the mount was closed",)] * 2


# -- retries and breaker ---------------------------------------------------------------------------


class Passing(ProviderError):
    """Says that it may pass."""

    retryable = True


@pytest.mark.parametrize("execution", ["thread", "async"])
def test_a_failure_that_may_pass_is_tried_again(kit, engine, execution):
    calls = []

    def fail_twice(batch):
        calls.append(len(batch))
        if len(calls) < 3:
            raise Passing("429")
        return [0.25]

    async def fail_twice_later(batch):
        return fail_twice(batch)

    if execution == "async":
        provider = kit.says_later(fail_twice_later)
    else:
        provider = kit.says(fail_twice, execution="thread")
    built = engine({"type": "m", "provider": provider, "retries": 2, "retry_wait": 0.01})
    assert built.score(kit.batch(1)).fused.tolist() == [0.25]
    assert calls == [1, 1, 1]
    assert built.describe()[0]["failures"] == 0


def test_retries_end_with_the_deadline(kit, engine):
    calls = []

    def fail(batch):
        calls.append(1)
        raise Passing("still down")

    built = engine(
        {
            "type": "m",
            "provider": kit.says(fail, execution="thread"),
            "retries": 1000,
            "retry_wait": 0.2,
            "timeout": 0.6,
            **LENIENT,
        }
    )
    reason = built.score(kit.batch(1)).columns["m"].reasons[0]
    assert reason in ("still down", "no answer within timeout: 0.6 s")
    assert 1 <= len(calls) <= 4


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_a_breaker_stops_calling_and_tries_again_after_a_while(kit, engine, execution):
    calls, down = [], [True]

    def score(batch):
        calls.append(1)
        if down:
            raise ConnectionError("down")
        return [1.0]

    built = engine(
        {
            "type": "m",
            "provider": kit.says(score, execution=execution),
            "breaker": {"failures": 2, "reset": 0.3},
            **LENIENT,
        }
    )
    for _ in range(5):
        last = built.score(kit.batch(1)).columns["m"]
    assert len(calls) == 2
    assert last.reasons[0].startswith("not called: its last 2 calls failed (breaker: failures: 2")
    assert built.describe()[0]["breaker"] == "open"
    down.clear()
    end = time.monotonic() + 20
    while built.describe()[0]["breaker"] == "open" and time.monotonic() < end:
        time.sleep(0.01)
    assert built.describe()[0]["breaker"] == "half-open"
    assert built.score(kit.batch(1)).fused.tolist() == [1.0]
    assert built.describe()[0]["breaker"] == "closed"


# -- host ------------------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The keys of a host with one slot; its folder is the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return {"name": "api.example.com", "concurrency": 1}


@pytest.mark.parametrize("execution", ["thread", "async"])
def test_mounts_that_name_one_host_share_its_slots(kit, engine, busy, host, execution):
    mounts = [
        {"type": name, "provider": provider_of(kit, busy, execution), "host": host}
        for name in ("a", "b", "c")
    ]
    built = engine(*mounts)
    with ThreadPoolExecutor(1) as pool:
        table = pool.submit(built.score, kit.batch(1))
        assert busy.reached(1)
        time.sleep(0.2)  # no second
        busy.go.set()
        assert table.result().fused.tolist() == [3.0]
    assert busy.most == 1


@pytest.mark.parametrize("execution", ["thread", "async"])
def test_the_wait_for_a_slot_is_bounded_by_queue_timeout_and_costs_no_instance(
    kit, engine, busy, host, execution
):
    holder = engine({"type": "m", "provider": provider_of(kit, busy, "thread"), "host": host})
    waiter = engine(
        {
            "type": "m",
            "provider": provider_of(kit, busy, execution),
            "host": host,
            "queue_timeout": 0.2,
            **LENIENT,
        }
    )
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(holder.score, kit.batch(1))
        assert busy.reached(1)
        for _ in range(2):
            late = waiter.score(kit.batch(1)).columns["m"]
            assert late.reasons == (
                "no free slot of the host 'api.example.com' (concurrency: 1) within"
                " queue_timeout: 0.2 s",
            )
        busy.go.set()
        assert held.result().fused.tolist() == [1.0]
    assert waiter.score(kit.batch(1)).fused.tolist() == [1.0]
    assert waiter.describe()[0]["restarts"] == 0


@pytest.mark.parametrize("execution", ["thread", "async"])
def test_a_call_that_hangs_gives_its_slot_back_at_its_deadline(kit, engine, busy, host, execution):
    built = engine(
        {
            "type": "m",
            "provider": provider_of(kit, busy, execution),
            "host": host,
            "timeout": 0.2,
            **LENIENT,
        },
        {"type": "n", "provider": kit.says([2.0], execution="thread"), "host": host},
    )
    table = built.score(kit.batch(1))
    assert table.columns["m"].reasons == ("no answer within timeout: 0.2 s",)
    assert built.score(kit.batch(1)).columns["n"].scores.tolist() == [2.0]


def test_a_call_that_waits_for_a_slot_moves_on_when_its_instance_is_poisoned(kit, engine, busy):
    """Two calls at once on one instance; the first hangs while the second waits for its slot."""
    hung = threading.Event()

    def score(batch):
        if batch.step == 1:
            hung.set()
            busy.go.wait(60)
        return [float(batch.step)]

    other = engine({"type": "o", "provider": provider_of(kit, busy, "thread"), "host": HOST_TWO})
    built = engine(
        {
            "type": "m",
            "provider": lambda: kit.says(score, execution="thread", thread_safe=True),
            "host": HOST_TWO,
            "timeout": 0.5,
            "queue_timeout": 30.0,
            **LENIENT,
        }
    )
    with ThreadPoolExecutor(3) as pool:
        holder = pool.submit(other.score, kit.batch(1))
        assert busy.reached(1)
        first = pool.submit(built.score, kit.batch(1, step=1))
        assert hung.wait(20)
        second = pool.submit(built.score, kit.batch(1, step=2))
        assert first.result().columns["m"].reasons == ("no answer within timeout: 0.5 s",)
        assert second.result().fused.tolist() == [2.0]
        busy.go.set()
        assert holder.result().fused.tolist() == [1.0]


HOST_TWO = {"name": f"tests-{os.getpid()}", "concurrency": 2}


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"workers": 2}, r"reward\.m\.workers.*not thread safe.*execution: process"),
        ({"execution": "inline", "workers": 1}, "workers.*not for an inline mount"),
        ({"execution": "inline", "retries": 1}, "retries.*no deadline to retry within"),
        ({"execution": "inline", "host": {"name": "x"}}, "host.*hold its caller up"),
        ({"execution": "process"}, "a node_class is given the step's tensors.*thread or inline"),
        ({"cache": {}}, "cache.*a node_class is given the step's tensors"),
        ({"retry_wait": 1.0}, "retry_wait: needs retries:"),
        ({"workers": 0}, "workers"),
        ({"retries": -1}, "retries"),
        ({"breaker": {"failures": 0}}, "breaker.failures"),
        ({"breaker": {"reset": 0.0}}, "breaker.reset"),
        ({"host": {"name": ""}}, "host.name"),
        ({"host": {"concurrency": 2}}, "host.name"),
        ({"cache": {"rows": 0}}, "cache.rows"),
    ],
)
def test_keys_that_do_not_go_together_are_refused_with_the_reason(kit, engine, keys, said):
    with pytest.raises((ConfigError, ValueError), match=rf"(?s){said}"):
        engine({"type": "m", "provider": kit.says([1.0], execution="thread"), **keys})


def test_a_provider_that_runs_inline_by_itself_refuses_them_too(kit, engine):
    with pytest.raises(ConfigError, match=r"reward\.m\.retries: .*execution: thread"):
        engine({"type": "m", "provider": kit.says([1.0]), "retries": 1})


def test_without_cache_and_breaker_the_description_says_so(kit, engine):
    built = engine({"type": "m", "provider": kit.says([1.0])})
    shown = built.describe()[0]
    assert [shown[key] for key in ("workers", "restarts", "breaker", "cache")] == [
        None,
        0,
        None,
        None,
    ]
    assert math.isfinite(shown["seconds_mean"])
