"""A system that runs out of something under a mount: calls fail with the reason, and none hangs;
once there is enough again, the mount works as before."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import threading
import time
from contextlib import contextmanager

import pytest

from verl_core.rewards.execution import wait_any

LENIENT = {"on_error": "abstain", "max_error_rate": 1.0, "timeout": 60.0}
PLACES = ["thread", "async", "process"]

pytestmark = pytest.mark.usefixtures("deeds")


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "verl-reward"


@pytest.fixture
def mount(kit):
    def make(execution, **keys):
        keys = {"type": "m", "execution": execution, **LENIENT, **keys}
        if execution == "process":
            return {**keys, "plugin": "rows"}
        if execution == "async":

            async def later(batch):
                return [1.0] * len(batch)

            return {**keys, "provider": kit.says_later(later)}
        return {**keys, "provider": kit.says(lambda batch: [1.0] * len(batch), thread_safe=True)}

    return make


@contextmanager
def no_folder(runtime):
    """A file in the place of the runtime folder."""
    shutil.rmtree(runtime)
    runtime.write_text("")
    yield
    runtime.unlink()


@contextmanager
def no_descriptors(_):
    """As many open files as there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    most = max(int(name) for name in os.listdir("/proc/self/fd")) + 9
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        got = -1
        while got < len(taken):  # until nothing gives one back any more, such as an ended call
            got = len(taken)
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            time.sleep(0.05)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


@contextmanager
def no_threads():
    """Stacks that no memory is large enough for."""
    threading.stack_size(2**46)
    try:
        with pytest.raises(RuntimeError):
            threading.Thread(target=int).start()
        yield
    finally:
        threading.stack_size(0)


def ended(calls):
    while not all(call.done for call in calls):
        wait_any([call for call in calls if not call.done])
    return [call.future.exception() for call in calls]


@pytest.mark.parametrize("execution", PLACES)
@pytest.mark.parametrize(
    ("without", "said"),
    [(no_folder, "NotADirectoryError"), (no_descriptors, "Too many open files")],
)
def test_calls_fail_at_once_where_no_slot_of_the_host_can_be_had(
    engine, mount, make_batch, runtime, execution, without, said
):
    built = engine(mount(execution, host={"name": "x", "concurrency": 1}))
    runner = built.mounts["m"].runner
    assert built.score(make_batch("1")).fused.tolist() == [1.0]
    with without(runtime):
        errors = ended([runner.submit(make_batch("1")) for _ in range(5)])
    for error in errors:
        assert "no slot of the host 'x' can be had in" in str(error)
        assert said in str(error)
    assert built.score(make_batch("1")).fused.tolist() == [1.0]
    assert built.describe()[0]["restarts"] == 0


@pytest.mark.parametrize("execution", PLACES)
def test_calls_fail_at_once_where_no_thread_can_be_started(engine, mount, make_batch, execution):
    built = engine(mount(execution))
    with no_threads():
        (error,) = ended([built.mounts["m"].runner.submit(make_batch("1"))])
    assert "can't start new thread" in str(error)
    assert built.score(make_batch("1")).fused.tolist() == [1.0]


def test_a_place_outlives_a_worker_that_cannot_be_started(process_runner, order):
    runner = process_runner()
    with no_descriptors(None):
        error = order(runner, "score 1")
    assert "Too many open files" in str(error)
    runner.setup()  # at once, without the pause
    assert order(runner, "score 0.5") == [0.5]


@pytest.mark.parametrize("without", [no_folder, no_descriptors])
def test_who_waits_in_line_hears_of_it_and_leaves_nothing_open(
    engine, mount, make_batch, runtime, our_descriptors, without
):
    built = engine(mount("thread", host={"name": "x", "concurrency": 1}))
    built.score(make_batch("1"))
    before = our_descriptors()
    with without(runtime):
        for _ in range(3):
            built.score(make_batch("1"))
    assert our_descriptors() <= before  # fewer, where another test's worker has just ended
