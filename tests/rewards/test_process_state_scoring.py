"""What a provider changes of the process while it scores is put back, and told of once."""

from __future__ import annotations

import locale
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from verl_core.rewards.process_state import Culprit, Watch, kept

torch = pytest.importorskip("torch")

OF_THE_PROCESS: dict[str, Callable[[], Any]] = {
    "the working folder": lambda: os.chdir("/"),
    "the locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's choice of deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "torch's precision of float32 products": lambda: torch.set_float32_matmul_precision("medium"),
    "torch's detection of anomalies": lambda: torch.autograd.set_detect_anomaly(True, False),
}
HELD: list[Any] = []


def enter_inference_mode() -> None:
    HELD.append(torch.inference_mode())
    HELD[-1].__enter__()


OF_THE_THREAD: dict[str, Callable[[], Any]] = {
    "numpy's error handling": lambda: np.seterr(all="raise"),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's inference mode": enter_inference_mode,
    "torch's recording of gradients": lambda: torch.set_grad_enabled(False),
    "torch's autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "torch's number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 2),
}


def state() -> tuple[Any, ...]:
    return (
        os.getcwd(),
        np.geterr(),
        locale.setlocale(locale.LC_ALL),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_deterministic_debug_mode(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_num_threads(),
    )


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """So that a failure here is none of other tests."""
    folder, words, threads = os.getcwd(), locale.setlocale(locale.LC_ALL), torch.get_num_threads()
    locale.setlocale(locale.LC_ALL, "C")
    with np.errstate():
        yield
    os.chdir(folder)
    locale.setlocale(locale.LC_ALL, words)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.set_deterministic_debug_mode(0)
    torch.set_float32_matmul_precision("highest")
    torch.autograd.set_detect_anomaly(False)
    torch.set_autocast_enabled("cpu", False)
    torch.set_num_threads(threads)


def changes_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [record.getMessage() for record in caplog.records]
    return [text.partition(" of the whole process")[0] for text in told]


@pytest.mark.parametrize("execution", ["inline", "thread", "async"])
def test_what_a_provider_changes_while_it_scores_is_put_back_and_told_once(
    kit: Any, engine: Callable[..., Any], caplog: pytest.LogCaptureFixture, execution: str
) -> None:
    """By the time the batch is scored; a thread of the mount's own may be as it likes."""
    changes = {**OF_THE_PROCESS, **(OF_THE_THREAD if execution == "inline" else {})}

    def score(batch: Any) -> list[float]:
        for change in changes.values():
            change()
        return [1.0] * len(batch)

    async def score_later(batch: Any) -> list[float]:
        return score(batch)

    later = execution == "async"
    provider = kit.says_later(score_later) if later else kit.says(score)
    built = engine({"type": "tone", "provider": provider, "execution": execution})
    built.setup()
    before = state()
    for _ in range(3):
        assert built.score(kit.batch(2)).fused.tolist() == [1.0, 1.0]
        assert state() == before
        assert torch.ones(2, requires_grad=True).sum().grad_fn is not None
    wanted = [f"mount 'tone' (tests.Provider) changed {what}" for what in changes]
    assert sorted(changes_of(caplog)) == sorted(wanted)


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_it_is_put_back_where_the_provider_raises_too(
    kit: Any, engine: Callable[..., Any], caplog: pytest.LogCaptureFixture, execution: str
) -> None:
    def score(batch: Any) -> list[float]:
        torch.set_default_dtype(torch.float64)
        raise OSError("gone")

    mount = {"type": "tone", "provider": kit.says(score), "execution": execution, **kit.lenient}
    table = engine(mount, {"type": "n", "provider": kit.says([1.0])}).score(kit.batch(1))
    assert table.columns["tone"].reasons == ("OSError: gone",)
    assert torch.get_default_dtype() == torch.float32
    [told] = [t for t in changes_of(caplog) if "changed" in t]
    assert told.endswith("changed torch's default dtype")
    assert "mount 'tone'" in told


def test_a_call_that_was_given_up_is_told_of_and_its_change_put_back(
    kit: Any,
    engine: Callable[..., Any],
    gate_event: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def score(batch: Any) -> list[float]:
        torch.set_default_dtype(torch.float64)
        gate_event.wait()
        return [1.0]

    mount = {
        "type": "tone",
        "provider": lambda: kit.says(score),
        "execution": "thread",
        "timeout": 0.2,
        **kit.lenient,
    }
    built = engine(mount, {"type": "n", "provider": kit.says([1.0])})
    table = built.score(kit.batch(1))
    assert "timeout" in table.columns["tone"].reasons[0]
    assert torch.get_default_dtype() == torch.float32
    assert "mount 'tone' (tests.Provider) changed torch's default dtype" in changes_of(caplog)


def test_what_a_call_changes_for_a_moment_is_not_taken_from_it_by_another_that_ends(
    kit: Any, engine: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As transformers does while it loads a model in another precision."""
    loading, ended = threading.Event(), threading.Event()
    seen: list[Any] = []

    def load(batch: Any) -> list[float]:
        torch.set_default_dtype(torch.bfloat16)
        loading.set()
        ended.wait(30)
        seen.append(torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        return [1.0]

    def quick(batch: Any) -> list[float]:
        loading.wait(30)
        return [1.0]

    built = engine(
        {"type": "slow", "provider": kit.says(load), "execution": "thread"},
        {"type": "quick", "provider": kit.says(quick), "execution": "thread"},
    )
    built.setup()
    scoring = built.open(kit.batch(1))
    calls = {name: mount.ask(scoring.batch, None) for name, mount in built.mounts.items()}
    for name, may_end in (("quick", None), ("slow", ended)):
        if may_end is not None:
            may_end.set()
        calls[name].future.result(30)
        built.mounts[name].read(calls[name], 1, None)
    assert seen == [torch.bfloat16]
    assert torch.get_default_dtype() == torch.float32
    assert changes_of(caplog) == []


def test_of_calls_that_overlap_those_are_named_that_may_have_done_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, (a, b, c) = Watch(), (Culprit(f"mount {name!r}") for name in "abc")
    end_c = watch.begin(c)
    end_c()
    end_a = watch.begin(a)
    torch.set_default_dtype(torch.float64)
    end_b = watch.begin(b)  # it comes to a process that is changed already
    end_a()
    assert torch.get_default_dtype() == torch.float64  # b may be in the midst of something
    end_b()
    end_b()
    assert torch.get_default_dtype() == torch.float32
    assert changes_of(caplog) == ["mount 'a' changed torch's default dtype"]
    caplog.clear()
    ends = [watch.begin(c), watch.begin(b)]
    torch.set_default_dtype(torch.float64)
    for end in ends:
        end()
    assert torch.get_default_dtype() == torch.float32
    assert changes_of(caplog) == ["mount 'b' or mount 'c' changed torch's default dtype"]


def test_a_change_between_two_calls_is_the_run_s_own(caplog: pytest.LogCaptureFixture) -> None:
    watch, culprit = Watch(), Culprit("mount 'a'")
    watch.begin(culprit)()
    torch.set_default_dtype(torch.float64)
    watch.begin(culprit)()
    with kept(culprit):
        pass
    assert torch.get_default_dtype() == torch.float64
    assert changes_of(caplog) == []


def test_a_precision_that_was_set_a_backend_at_a_time_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = torch.backends.cuda.matmul
    if not hasattr(backend, "fp32_precision"):
        pytest.skip("this torch has one way to set it")
    with caplog.at_level(logging.WARNING), kept("mount 'a'"):
        backend.fp32_precision = "tf32"
    with kept("mount 'b'"):
        pass
    assert not any("could not be put back" in text for text in changes_of(caplog))


@pytest.mark.parametrize("what", OF_THE_THREAD)
def test_a_mounts_next_call_in_its_thread_does_not_find_what_the_last_one_changed(
    engine: Any, kit: Any, what: str
) -> None:
    seen: list[Any] = []

    def score(batch: Any) -> list[float]:
        seen.append(state())
        OF_THE_THREAD[what]()
        return [1.0] * len(batch)

    built = engine({"type": "a", "provider": kit.says(score), "execution": "thread"})
    for _ in range(2):
        built.score(kit.batch(2))
    assert seen[0] == seen[1]
