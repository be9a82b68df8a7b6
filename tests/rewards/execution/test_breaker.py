"""The circuit breaker's states, and what a refused call says."""

from __future__ import annotations

import threading

import pytest

from verl_core.rewards.execution import Call, Limits, Work, make_runner, wait_any
from verl_core.rewards.execution.breaker import Breaker, BreakerOpen, GuardedRunner
from verl_reward_sdk import ContractError, ProviderError


class Clock:
    """A clock that stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(3, 30.0, clock=clock)


def fail(breaker, times=1):
    for _ in range(times):
        breaker.admit().failed("503")


def test_it_opens_after_so_many_failures_in_a_row_and_says_when_it_tries_again(breaker, clock):
    fail(breaker, 2)
    breaker.admit().succeeded()
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker)
    assert breaker.state == "open"
    clock.now += 10.5
    with pytest.raises(BreakerOpen, match=r"last 3 calls failed .*503; it is tried again in 19\.5"):
        breaker.admit()
    assert issubclass(BreakerOpen, ProviderError)


def test_half_open_lets_one_call_through_whose_success_closes_it(breaker, clock):
    fail(breaker, 3)
    clock.now += 30.0
    assert breaker.state == "half-open"
    trial = breaker.admit()
    with pytest.raises(BreakerOpen, match="when the call that is tried now has ended"):
        breaker.admit()
    trial.succeeded()
    assert breaker.state == "closed"
    fail(breaker, 2)
    assert breaker.state == "closed"  # it counts from the start


def test_half_open_a_failure_opens_it_for_another_reset(breaker, clock):
    fail(breaker, 3)
    clock.now += 30.0
    fail(breaker)
    assert breaker.state == "open"
    with pytest.raises(BreakerOpen, match=r"last 4 calls.* in 30\.0 s"):
        breaker.admit()


def test_a_trial_whose_end_nobody_learns_lets_the_next_one_through(breaker, clock):
    fail(breaker, 3)
    clock.now += 30.0
    breaker.admit().dropped()
    breaker.admit().succeeded()
    assert breaker.state == "closed"


def test_an_end_that_comes_late_changes_nothing(breaker, clock):
    late = [breaker.admit() for _ in range(3)]
    fail(breaker, 3)
    late[0].succeeded()
    assert breaker.state == "open"
    clock.now += 30.0
    trial = breaker.admit()
    late[1].failed("503")
    late[2].succeeded()
    assert breaker.state == "half-open"
    trial.succeeded()
    trial.failed("a second word does not count")
    assert breaker.state == "closed"


def test_from_many_threads_one_trial_is_let_through(breaker, clock):
    fail(breaker, 3)
    clock.now += 30.0
    start, passed = threading.Barrier(16), []

    def ask():
        start.wait()
        try:
            passed.append(breaker.admit())
        except BreakerOpen:
            return

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 1


@pytest.mark.parametrize(("failures", "reset"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_senseless_bounds_are_refused(failures, reset):
    with pytest.raises(ValueError, match="failures >= 1 and reset > 0"):
        Breaker(failures, reset)


@pytest.fixture
def guarded(kit, breaker):
    made = []

    def build(answer):
        provider = kit.says(answer)
        limits = Limits()
        work = Work(limits, breaker=breaker)
        runner = make_runner(
            "thread", name="m", provider=provider, build=lambda: provider, work=work, path="m"
        )
        assert isinstance(runner, GuardedRunner)
        made.append(runner)
        return made[-1]

    yield build
    for runner in made:
        runner.close()


def ended(runner, kit) -> Call:
    call = runner.submit(kit.batch(1))
    wait_any([call])
    return call


def test_a_guarded_runner_calls_no_provider_while_the_breaker_is_open(guarded, kit, clock):
    calls = []

    def answer(batch):
        calls.append(1)
        if len(calls) <= 3:
            raise ConnectionError("refused")
        return [1.0]

    runner = guarded(answer)
    for _ in range(3):
        assert isinstance(ended(runner, kit).future.exception(), ConnectionError)
    refusal = ended(runner, kit).future.exception()
    assert isinstance(refusal, BreakerOpen)
    assert "ConnectionError: refused" in str(refusal)
    assert len(calls) == 3
    clock.now += 30.0
    assert ended(runner, kit).future.result() == [1.0]


def test_a_breach_of_contract_does_not_open_it(guarded, kit, breaker):
    def answer(batch):
        raise ContractError("x", provider="m")

    runner = guarded(answer)
    for _ in range(5):
        assert isinstance(ended(runner, kit).future.exception(), ContractError)
    assert breaker.state == "closed"


def test_a_cancelled_trial_is_not_held_against_the_provider(guarded, kit, breaker, clock):
    event = threading.Event()

    def answer(batch):
        if not event.wait(0.05):
            raise ConnectionError("refused")
        return [1.0]

    runner = guarded(answer)
    for _ in range(3):
        ended(runner, kit)
    clock.now += 30.0
    trial = runner.submit(kit.batch(1))
    trial.runner.cancel(trial)
    event.set()
    assert ended(runner, kit).future.result() == [1.0]
    assert breaker.state == "closed"
