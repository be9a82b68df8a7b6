"""`execution: process`: what comes over, how workers are set up and closed, and who they serve."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_core.rewards.execution import Limits, wait_any
from verl_core.rewards.execution.call import Bell
from verl_core.rewards.execution.process import ProcessRunner
from verl_core.rewards.execution.process_wire import RaisedInWorker
from verl_core.rewards.execution.process_worker import provider_of_class, provider_of_plugin
from verl_core.rewards.execution.recipe import Recipe
from verl_core.rewards.execution.retry import Retries
from verl_reward_sdk import (
    ConfigError,
    ContractError,
    PluginError,
    ProviderError,
    ProviderTimeout,
    RewardResult,
)


def test_an_answer_comes_over_as_it_is(process_runner, misbehaving, make_batch):
    call = process_runner().submit(make_batch(*["everything"] * 4))
    wait_any([call])
    ours = misbehaving.everything()
    theirs = call.future.result()
    scores, scored = theirs.checked(provider="m", n=4, score_range=(-10.0, 10.0))
    expected, expected_scored = ours.checked(provider="m", n=4, score_range=(-10.0, 10.0))
    assert scores.tobytes() == expected.tobytes()
    assert scored.tolist() == expected_scored.tolist() == [True, True, False, False]
    assert theirs.failures == {2: "broke"}
    assert theirs.reasons == {0: "fine", 3: "who knows"}
    assert list(theirs.severity) == ["none", True, None, "skip"]
    assert theirs.extras["length"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert theirs.token_scores[0].tolist() == [0.1, 0.2]
    assert theirs.token_scores[1].tolist() == [[0.0, 2.0, 0.5], [2.0, 5.0, 0.25]]
    assert theirs.token_scores[2:] == [None, None]  # rows without a score have none


def test_workers_are_kept_warm_and_work_at_once(process_runner, make_batch):
    runner = process_runner(workers=2)
    runner.setup()
    rounds = []
    for _ in range(2):
        calls = [runner.submit(make_batch("sleep 0.3", "pid")) for _ in range(2)]
        while wait_any(calls) and not all(call.done for call in calls):
            time.sleep(0.01)
        rounds.append({call.future.result().scores[1] for call in calls})
    assert len(rounds[0]) == 2  # both workers, at the same time
    assert rounds[0] == rounds[1]


def test_setup_raises_what_the_provider_raised(process_runner):
    with pytest.raises(ConfigError, match=r"words\.txt:3: no such word list \(write one\)"):
        process_runner(options={"refuses": True}).setup()
    with pytest.raises(RaisedInWorker, match="LookupError: nothing to load") as raised:
        process_runner(options={"raises": True}, workers=2).setup()
    assert raised.value.kind == "LookupError"
    with pytest.raises(ProviderError, match="exited with code 7 while it was set up"):
        process_runner(options={"doomed": ""}).setup()
    with pytest.raises(ProviderTimeout, match="was not set up within 1 s"):
        process_runner(options={"slow": True}, setup_timeout=1.0).setup()


def test_setup_may_be_tried_again(process_runner, order, tmp_path):
    doomed = tmp_path / "doomed"
    doomed.write_text("")
    runner = process_runner(options={"doomed": str(doomed)})
    with pytest.raises(ProviderError, match="code 7"):
        runner.setup()
    doomed.unlink()
    runner.setup()
    assert order(runner, "score 1") == [1.0]


def test_an_exception_comes_back_with_type_text_and_traceback(process_runner, order):
    runner = process_runner()
    (first,) = order(runner, "pid")
    error = order(runner, "raise")
    assert isinstance(error, RaisedInWorker)
    assert (error.kind, str(error)) == ("ZeroDivisionError", "ZeroDivisionError: one by none")
    assert "in do_raise" in error.traceback
    assert "in do_raise" in str(error.__cause__)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(order(runner, "leave")) == "SystemExit: 4"
    assert order(runner, "pid") == [first]  # it lives on


def test_an_exceptions_class_is_never_unpickled(process_runner, order, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = order(process_runner(), "strange")
    assert (type(error), error.kind) == (RaisedInWorker, "Strange")
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("function", "m: row 0: the score is no number: got <function"),
        ("infinite", "m: row 0: the score is not finite: got inf, expected a finite number"),
    ],
)
def test_an_answer_that_breaks_the_contract_names_row_and_value(process_runner, order, deed, said):
    error = order(process_runner(), deed)
    assert isinstance(error, ContractError)
    assert str(error).startswith(said)
    assert error.row == 0


def test_a_batch_that_cannot_be_sent_fails_and_names_the_column(process_runner, order):
    runner = process_runner()
    error = order(runner, "score 1", columns={"fine": [1], "odd": [lambda: 1]})
    assert "the column 'odd' cannot be pickled" in str(error)
    assert order(runner, "score 1", columns={"fine": [1]}) == [1.0]


def test_a_large_batch_goes_over(process_runner, order):
    assert order(process_runner(), "score 1", columns={"large": ["x" * 10_000_000]}) == [1.0]


def test_what_a_worker_prints_is_logged_under_the_mounts_name(process_runner, order, caplog):
    runner = process_runner(secrets=["sk-12345"])
    assert order(runner, "print") == [1.0]
    assert order(runner, "block_twice") == [1.0]  # more than a pipe holds
    runner.close()
    lines = [record.getMessage() for record in caplog.records]
    for text in ("through Python", "an error", "past Python �", "from a child"):
        assert any(line.startswith("mount m, worker") and line.endswith(text) for line in lines)
    assert "sk-12345" not in caplog.text
    assert "the key is" in caplog.text


def test_queue_timeout_bounds_the_wait_and_a_cancelled_call_leaves_the_line(
    process_runner, make_batch
):
    runner = process_runner(queue_timeout=0.3)
    runner.setup()
    running = runner.submit(make_batch("sleep 1"))
    waiting, cancelled = runner.submit(make_batch("score 1")), runner.submit(make_batch("score 1"))
    runner.cancel(cancelled)
    assert str(cancelled.future.exception()) == "cancelled by its caller"
    wait_any([waiting])
    assert str(waiting.future.exception()) == "not begun within queue_timeout: 0.3 s"
    wait_any([running])
    assert running.future.result().scores.tolist() == [1.0]


def test_close_closes_the_providers_and_leaves_nobody(process_runner, order, gone, tmp_path):
    runner = process_runner(options={"closed": str(tmp_path / "closed")})
    (pid,) = order(runner, "pid")
    runner.close()
    assert (tmp_path / "closed").read_text() == "closed"
    assert gone(int(pid))
    assert "the mount was closed" in str(order(runner, "score 1"))
    with pytest.raises(ProviderError, match="the mount was closed"):
        runner.setup()


def test_close_fails_calls_that_run_or_wait(process_runner, make_batch, monkeypatch):
    monkeypatch.setattr("verl_core.rewards.execution.process._CLOSE_SECONDS", 0.2)
    runner = process_runner()
    runner.setup()
    calls = [runner.submit(make_batch("sleep")) for _ in range(2)]
    while calls[0].started is None:
        time.sleep(0.01)
    runner.close()
    assert [str(call.future.exception()) for call in calls] == ["the mount was closed"] * 2
    assert not runner.children


def test_it_serves_several_event_loops_sync_callers_and_threads_at_once(process_runner, make_batch):
    runner = process_runner(workers=2)

    async def several(value):
        bell = Bell()
        calls = [runner.submit(make_batch(f"score {value + i}")) for i in range(5)]
        for call in calls:
            bell.hang_on(call)
        while not all(call.done for call in calls):
            await bell.wait_any([call for call in calls if not call.done])
        return [call.future.result().scores[0] for call in calls]

    def blocking(value):
        call = runner.submit(make_batch(f"score {value}"))
        wait_any([call])
        return call.future.result().scores[0]

    with ThreadPoolExecutor(6) as pool:
        loops = [pool.submit(asyncio.run, several(value)) for value in (10, 20, 30)]
        others = [pool.submit(blocking, value) for value in (1, 2, 3)]
        assert [one.result()[4] for one in loops] == [14.0, 24.0, 34.0]
        assert [one.result() for one in others] == [1.0, 2.0, 3.0]
    assert asyncio.run(several(40)) == [40.0, 41.0, 42.0, 43.0, 44.0]


def test_a_worker_has_a_session_of_its_own_so_that_ctrl_c_passes_it_by(process_runner, order):
    (pid,) = order(process_runner(), "pid")
    assert os.getsid(int(pid)) == int(pid) != os.getsid(0)


def test_retries_happen_in_the_worker_and_inside_the_deadline(process_runner, order):
    runner = process_runner(retries=Retries(2, wait=0.01, timeout=20.0))
    assert order(runner, "fail_first 2") == [3.0]
    assert str(order(process_runner(), "fail_first 2")) == "for now"


def test_a_recipe_that_another_process_could_not_follow_is_refused_at_once():
    with pytest.raises(ConfigError, match="cannot be sent to a worker process"):
        ProcessRunner(Recipe("m", lambda: None), Limits())

    def script() -> None:
        """As if it were defined in the script that runs."""

    script.__module__ = "__main__"
    with pytest.raises(ConfigError, match=r"script is defined in the script that runs"):
        ProcessRunner(Recipe("m", script), Limits())


def test_a_class_by_name_gets_its_config_as_it_was_written(misbehaving, order, tmp_path):
    (tmp_path / "words.txt").write_text("four")
    recipe = Recipe(
        "m", provider_of_class, ("misbehaving:Configured", {"words": "words.txt"}, tmp_path)
    )
    runner = ProcessRunner(recipe, Limits())
    try:
        assert order(runner, "any") == [8.0]
    finally:
        runner.close()
    recipe = Recipe("m", provider_of_class, ("misbehaving:make", {}, tmp_path))
    wrong = ProcessRunner(recipe, Limits())
    with pytest.raises(ConfigError, match="misbehaving:make is no RewardProvider class"):
        wrong.setup()
    wrong.close()


def test_an_installed_reward_scores_the_same_bits_in_a_worker(order, make_batch, tmp_path):
    responses, columns = ["It is fine.", "No."], {"ground_truth": ["It is fine.", "It is fine."]}
    here = provider_of_plugin("chrf", {}, tmp_path)
    here.setup()
    expected = RewardResult.of(here.score(make_batch(*responses, columns=columns)), provider="m")
    runner = ProcessRunner(Recipe("m", provider_of_plugin, ("chrf", {}, tmp_path)), Limits())
    try:
        assert order(runner, *responses, columns=columns) == list(expected.scores)
    finally:
        runner.close()
    absent = ProcessRunner(Recipe("m", provider_of_plugin, ("chrff", {}, tmp_path)), Limits())
    with pytest.raises(PluginError, match="chrf"):
        absent.setup()
    absent.close()
