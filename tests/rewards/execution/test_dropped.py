"""Engines that nobody closed: what they started ends all the same."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from verl_reward_sdk import ProviderError

pytestmark = pytest.mark.usefixtures("deeds")

CLOSER = "reward-closer"


def until(holds):
    end = time.monotonic() + 30
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def ours():
    return {thread for thread in threading.enumerate() if thread.name.startswith("reward-")}


def mounts(kit, closed):
    def closing(provider, name):
        type(provider).close = lambda self: closed.append(name)
        return provider

    return [
        {"type": "p", "plugin": "rows", "execution": "process", "breaker": {}},
        {"type": "a", "provider": closing(kit.says_later(kit.lengths_later), "a")},
        {"type": "t", "provider": closing(kit.says(kit.lengths, execution="thread"), "t")},
    ]


def test_an_engine_that_is_dropped_ends_its_threads_and_workers(
    kit, make_batch, our_children, our_descriptors
):
    closed = []

    def once():
        built = kit.engine(*mounts(kit, closed))
        assert built.score(make_batch("1")).fused.tolist() == [3.0]

    before = {thread for thread in ours() if thread.name != CLOSER}
    for _ in range(3):
        once()
    gc.collect()
    assert until(lambda: {thread for thread in ours() if thread.name != CLOSER} <= before)
    assert until(lambda: our_children() == [])
    assert sorted(closed) == ["a"] * 3 + ["t"] * 3
    descriptors = our_descriptors()
    once()
    gc.collect()
    assert until(lambda: len(closed) == 8)
    assert until(lambda: our_descriptors() == descriptors)


def test_a_call_that_is_under_way_keeps_its_mount(kit, make_batch):
    go = threading.Event()
    provider = kit.says(lambda batch: go.wait(60) and [1.0], execution="thread")
    built = kit.engine({"type": "m", "provider": provider})
    scored = []
    thread = threading.Thread(target=lambda b=built: scored.append(b.score(make_batch("1"))))
    thread.start()
    del built
    gc.collect()
    go.set()
    thread.join(60)
    assert scored[0].fused.tolist() == [1.0]


def test_a_with_whose_setup_fails_closes_what_was_set_up_before(kit, our_children):
    closed = []

    class Fails(kit.column):
        """Cannot be loaded."""

        def setup(self):
            raise RuntimeError("nothing there")

    before = ours()
    built = kit.engine(*mounts(kit, closed), {"type": "f", "provider": Fails("x")})
    with pytest.raises(ProviderError, match=r"mount 'f'.*nothing there"), built:
        pytest.fail("it was loaded")
    assert our_children() == []
    assert {t for t in ours() if t.name != CLOSER} <= before
    assert sorted(closed) == ["a", "t"]
