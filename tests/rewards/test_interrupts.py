"""A provider that raises what is no `Exception`: a failed call, and nothing else comes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from verl_reward_sdk import ProviderError, RewardProvider


class Bare(BaseException):
    """What no `except Exception` catches."""


class Unspeakable(BaseException):
    """Its own text cannot be had."""

    def __str__(self):
        raise SystemExit(4)


class Interrupting(BaseException):
    """Its own text interrupts."""

    def __str__(self):
        raise KeyboardInterrupt


KINDS = [
    (Bare("lost"), "Bare: lost"),
    (SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt("mine"), "KeyboardInterrupt: mine"),
    (GeneratorExit(), "GeneratorExit"),
    (StopIteration(1), "StopIteration: 1"),
    (Unspeakable(), "Unspeakable: (its text cannot be shown: SystemExit)"),
]
PLACES = ("thread", "async", "inline")
#: Everywhere but where it is Ctrl-C: a `KeyboardInterrupt` inline in the main thread.
RAISED = pytest.mark.parametrize(
    ("execution", "error", "reason"),
    [
        pytest.param(place, error, reason, id=f"{place}-{type(error).__name__}")
        for place in PLACES
        for error, reason in KINDS
        if place != "inline" or not isinstance(error, KeyboardInterrupt)
    ],
)


def _provider(kit, execution, turns):
    """Raises the errors of `turns`, one a call; None scores 1."""

    def score(batch):
        error = turns.pop(0)
        if error is not None:
            raise error
        return [1.0]

    async def later(batch):
        await asyncio.sleep(0)
        return score(batch)

    if execution == "async":
        return kit.says_later(later)
    return kit.says(score, execution=execution)


@RAISED
def test_it_fails_its_call_with_its_own_reason_and_the_next_call_is_answered(
    kit, engine, execution, error, reason
):
    if execution == "async" and isinstance(error, StopIteration):
        reason = "RuntimeError: coroutine raised StopIteration"
    provider = _provider(kit, execution, [error, None, error, None])
    built = engine({"type": "m", "provider": provider, "timeout": 30.0, **kit.lenient})
    tables = [built.score(kit.batch(1)) for _ in range(4)]
    assert [table.columns["m"].reasons[0] for table in tables] == [reason, None, reason, None]
    assert [table.columns["m"].status[0] for table in tables] == ["failed", "ok"] * 2


def test_inline_a_keyboard_interrupt_of_another_thread_is_a_failed_call(kit, engine):
    provider = _provider(kit, "inline", [KeyboardInterrupt("mine")])
    built = engine({"type": "m", "provider": provider, **kit.lenient})
    tables = []
    caller = threading.Thread(target=lambda: tables.append(built.score(kit.batch(1))))
    caller.start()
    caller.join()
    assert tables[0].columns["m"].reasons == ("KeyboardInterrupt: mine",)


def test_inline_in_the_main_thread_ctrl_c_ends_the_scoring_and_the_mount_works_on(kit, engine):
    turns = [lambda: signal.raise_signal(signal.SIGINT), lambda: None]

    def score(batch):
        turns.pop(0)()
        return [1.0]

    built = engine({"type": "m", "provider": kit.says(score, execution="inline"), **kit.lenient})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            built.score(kit.batch(1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert built.score(kit.batch(1)).fused.tolist() == [1.0]


def test_an_answer_that_raises_while_it_is_read_fails_its_call(kit, engine):
    class Trap(list):
        def __iter__(self):
            raise Bare("in the answer")

    built = engine({"type": "m", "provider": kit.says(Trap([1.0])), **kit.lenient})
    reason = built.score(kit.batch(1)).columns["m"].reasons[0]
    assert "the answer cannot be read (Bare: in the answer)" in reason


@pytest.mark.parametrize("execution", ["thread", "async"])
def test_a_setup_whose_error_interrupts_while_it_is_told_holds_nobody_up(kit, engine, execution):
    made = []

    def setup(self):
        made.append(self)
        raise Interrupting

    says = kit.says_later if execution == "async" else kit.says
    answer = kit.lengths_later if execution == "async" else [1.0]
    provider = says(answer, execution=execution, setup=setup)
    built = engine({"type": "m", "provider": provider})
    told = []
    loading = threading.Thread(target=lambda: told.append(_error_of(built.setup)))
    loading.start()
    loading.join(30)
    assert len(made) == 1
    assert "Interrupting: (its text cannot be shown: KeyboardInterrupt)" in str(told[0])


def _error_of(action):
    try:
        action()
    except ProviderError as error:
        return error
    return None


@RAISED
def test_a_setup_that_raises_it_is_named_with_its_mount(kit, engine, execution, error, reason):
    def setup(self):
        raise error

    if execution == "async":
        provider = kit.says_later(kit.lengths_later, setup=setup)
    else:
        provider = kit.says([1.0], execution=execution, setup=setup)
    if execution == "async" and isinstance(error, StopIteration):
        reason = "coroutine raised StopIteration"
    with pytest.raises(ProviderError) as refused:
        engine({"type": "m", "provider": provider}).setup()
    assert "mount 'm'" in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize("execution", PLACES)
def test_a_close_that_raises_it_is_logged_and_the_other_mounts_are_closed(kit, caplog, execution):
    closed = []

    def close(self):
        raise Bare("on the way out")

    says = kit.says_later if execution == "async" else kit.says
    answer = kit.lengths_later if execution == "async" else [1.0]
    provider = says(answer, execution=execution, close=close)
    other = kit.says([1.0], execution="inline", close=lambda self: closed.append(True))
    built = kit.engine({"type": "m", "provider": provider}, {"type": "n", "provider": other})
    built.score(kit.batch(1))
    built.close()
    assert closed == [True]
    assert "mount m: close() failed" in caplog.text


def test_a_task_of_an_async_providers_own_cannot_end_its_event_loop(kit, engine, caplog):
    async def exit_later():
        raise SystemExit(5)

    tasks = []

    async def score(batch):
        tasks.append(asyncio.ensure_future(exit_later()))
        await asyncio.sleep(0)
        return [1.0]

    built = engine({"type": "m", "provider": kit.says_later(score), "timeout": 30.0})
    assert [built.score(kit.batch(1)).fused.tolist() for _ in range(3)] == [[1.0]] * 3
    assert "a task of its own failed" in caplog.text
    assert [task.exception().code for task in tasks] == [5, 5, 5]


@pytest.mark.parametrize("what", ["__init__", "score_range", "reads"])
def test_a_provider_that_exits_while_it_is_made_is_refused_with_its_path(kit, engine, what):
    def leave(self, *args):
        raise SystemExit(6)

    members = {what: leave if what == "__init__" else property(leave)}
    with pytest.raises(Exception, match=r"reward\.m: .*SystemExit: 6"):
        engine({"type": "m", "provider": lambda: type("Leaves", (RewardProvider,), members)(None)})


EXIT = """
    from verl_core.config.mount import MountConfig
    from verl_core.config.rewards import RewardsConfig
    from verl_core.rewards import RewardEngine
    from verl_reward_sdk import AsyncRewardProvider, RewardBatch, RewardProvider

    class Interrupts(RewardProvider):
        def __init__(self): pass
        def score(self, batch): raise KeyboardInterrupt

    class Later(AsyncRewardProvider):
        def __init__(self): pass
        async def score(self, batch): raise KeyboardInterrupt

    lenient = dict(node_class="here.It", max_error_rate=1.0)
    config = RewardsConfig(mounts=(
        MountConfig(type="now", **lenient), MountConfig(type="later", **lenient)))
    kinds = {"now": Interrupts, "later": Later}
    engine = RewardEngine.from_config(config, node_factory=lambda m, base: kinds[m.name]())
    batch = RewardBatch(sample_ids=["a"], prompts=["p"], responses=["r"], training=True)
    for _ in range(5):
        table = engine.score(batch)
    print(*[column.reasons[0] for column in table.columns.values()])
"""


def test_interrupts_of_providers_never_hold_up_the_interpreters_exit():
    script = textwrap.dedent(EXIT)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("KeyboardInterrupt KeyboardInterrupt")
