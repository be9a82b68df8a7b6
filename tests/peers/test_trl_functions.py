"""TRL's reward functions as TRL calls them, without TRL: the same arguments, the same answers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_core.integrations.trl import TrlRewards, reward_functions
from verl_core.rewards import WeightStore
from verl_reward_sdk import ConfigError, RewardError


def grpo(n: int = 4, rows: int | None = None, **more: Any) -> SimpleNamespace:
    """The arguments of a trainer that hands over `rows` at once, in groups of `n`."""
    values = {
        "num_generations": n,
        "num_generations_eval": None,
        "per_device_train_batch_size": n if rows is None else rows,
        "per_device_eval_batch_size": n,
        "steps_per_generation": 1,
        "multi_objective_aggregation": "sum_then_normalize",
        "beta": 0.0,
    }
    return SimpleNamespace(**values | more)


class AsyncGRPOConfig(SimpleNamespace):
    """Known by its name."""


class Trainer:
    """What a call's ``log_metric`` belongs to."""

    def __init__(self, training: bool = True, **more: Any) -> None:
        self.model = SimpleNamespace(training=training)
        self.metrics: dict[str, float] = {}
        self.columns: dict[str, list[Any]] = {}
        for name, value in more.items():
            setattr(self, name, value)

    def log_metric(self, name: str, value: float) -> None:
        self.metrics[name] = value

    def log_extra(self, column: str, values: list[Any]) -> None:
        self.columns[column] = values


def call(
    function: Any, step: int | None = 0, trainer: Trainer | None = None, **columns: Any
) -> Any:
    """Call `function` as TRL does, on one prompt."""
    n = len(next(iter(columns.values())))
    prompts = columns.pop("prompts", ["Why?"] * n)
    arguments = dict(
        prompts=prompts,
        completions=columns.pop("completions", [f"because {i}" for i in range(n)]),
        completion_ids=columns.pop("completion_ids", [[1, 2, i] for i in range(n)]),
        **columns,
    )
    if step is not None:
        arguments["trainer_state"] = SimpleNamespace(global_step=step)
    if trainer is not None:
        arguments |= {"log_metric": trainer.log_metric, "log_extra": trainer.log_extra}
    return function(**arguments)


def total(rewards: TrlRewards, **columns: Any) -> list[float | None]:
    """TRL's weighted sum: None adds nothing; a row of Nones is None."""
    n = len(next(iter(columns.values())))
    columns = {"completions": [f"because {i}" for i in range(n)], **columns}
    parts = [call(function, **columns) for function in rewards.reward_funcs]
    rows = list(zip(*parts, strict=True))
    return [
        None
        if all(part is None for part in row)
        else sum(w * p for w, p in zip(rewards.reward_weights, row, strict=True) if p is not None)
        for row in rows
    ]


@pytest.fixture
def make(run_yaml: Callable[..., Path]) -> Any:
    """`reward_functions` of mounts; closed when the test ends."""
    made: list[TrlRewards] = []

    def functions(*mounts: Any, fusion: Any = None, eval_reward: Any = None, **options: Any) -> Any:
        more = {"fusion": fusion} if fusion else {}
        more |= {"eval_reward": eval_reward} if eval_reward else {}
        made.append(reward_functions(run_yaml(*mounts, **more), **options))
        return made[-1]

    yield functions
    for one in made:
        one.close()


@pytest.fixture
def fused(make: Any) -> Callable[..., Any]:
    """The one function of ``mode="fused"``."""
    return lambda *mounts, **options: make(*mounts, **options).reward_funcs[0]


# -- the fused reward ------------------------------------------------------------------------------


def test_fuses_by_the_weights_and_returns_floats(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a", weight=2.0), mounts.cell("b", weight=0.5), args=grpo())
    assert call(function, a=[1.0, 0.0, 1.0, 0.5], b=[0.0, 1.0, 1.0, 0.0]) == [2.0, 0.5, 2.5, 1.0]
    assert function.__name__ == "reward"


def test_failed_row_is_none_and_the_others_keep_their_rewards(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a"), args=grpo())
    assert call(function, a=[1.0, "broken", 0.5, 0.0]) == [1.0, None, 0.5, 0.0]


def test_abstention_takes_its_groups_mean_where_groups_are_known(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a"), mounts.cell("b"), args=grpo())
    assert call(function, a=[1.0, None, 0.5, 0.0], b=[0.0] * 4) == [1.0, 0.5, 0.5, 0.0]


def test_abstention_is_none_where_groups_are_unknown(
    fused: Any, mounts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        function = fused(mounts.cell("a"), mounts.cell("b"))
    assert call(function, a=[1.0, None, 0.5, 0.0], b=[0.0] * 4) == [1.0, None, 0.5, 0.0]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "missing: mask in place of neutral" in said[0]


def test_row_without_a_score_of_any_mount_is_none(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a"), mounts.cell("b"), args=grpo())
    assert call(function, a=[1.0, None, 0.5, 0.0], b=[0.0, None, 0.0, 0.0]) == [1.0, None, 0.5, 0.0]


def test_groups_are_those_of_num_generations_not_of_equal_prompts(fused: Any, mounts: Any) -> None:
    # Twice the same prompt in a row: two groups, and each has a mean of its own.
    function = fused(mounts.cell("a"), mounts.cell("b"), args=grpo(2, rows=4))
    assert call(function, a=[1.0, None, 0.0, None], b=[0.0] * 4) == [1.0, 1.0, 0.0, 0.0]


def test_rows_that_are_not_whole_groups_are_an_error(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a"), args=grpo(4))
    with pytest.raises(RewardError, match="not whole groups of 4"):
        call(function, a=[1.0, 0.0])
    with pytest.raises(RewardError, match=r"rows 0 and 1 .* have different prompts"):
        call(function, a=[1.0] * 4, prompts=["Why?", "When?", "Why?", "Why?"])


def test_veto_is_a_reward_and_a_skip_is_none(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a"), mounts.gate("g"), args=grpo())
    cells = {"a": [1.0, 1.0, 1.0, 0.5], "g": ["none", "veto", "skip", "penalty"]}
    assert call(function, **cells) == [1.0, -1.0, None, -0.5]


def test_gate_that_failed_never_passes_a_row(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a"), mounts.gate("g"), args=grpo())
    cells = {"a": [1.0, 1.0, 1.0, 0.5], "g": ["none", "down!", None, "none"]}
    assert call(function, **cells) == [1.0, None, None, 0.5]


def test_too_many_failures_end_the_step_after_two_rescorings(
    fused: Any, mounts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("verl_core.integrations.trl_scorer.sleep", waits.append)
    function = fused(mounts.cell("a"), args=grpo())
    with pytest.raises(RewardError, match="3 of 4 rows failed"):
        call(function, a=["x", "y", "z", 1.0])
    assert waits == [1.0, 2.0]


def test_a_column_that_nobody_has_is_an_error_that_names_it(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("colour"), args=grpo())
    with pytest.raises(ConfigError, match=r"no column 'colour'.*did you mean 'color'"):
        call(function, color=[1.0] * 4)


# -- one function a mount --------------------------------------------------------------------------

CELLS = {
    "a": [1.0, 0.5, None, "broken", 0.25, 1.0, 1.0, 0.0],
    "b": [0.0, 1.0, 1.0, 1.0, 0.5, 1.0, 0.0, 1.0],
    "g": ["none", "veto", "none", "none", "penalty", "skip", "none", "veto"],
}


def test_trls_sum_of_the_parts_is_the_fused_reward(make: Any, mounts: Any) -> None:
    config = (mounts.cell("a", weight=2.0), mounts.cell("b", weight=0.5), mounts.gate("g"))
    parts = make(*config, mode="per_mount", args=grpo())
    assert [function.__name__ for function in parts.reward_funcs] == ["a", "b", "g"]
    assert parts.reward_weights == [2.0, 0.5, 1.0]
    whole = make(*config, args=grpo()).reward_funcs[0]
    assert total(parts, **CELLS) == call(whole, **CELLS)
    assert call(whole, **CELLS)[3] is None  # a failure masks its row in every part


def test_a_veto_counts_for_a_row_that_is_masked_otherwise(make: Any, mounts: Any) -> None:
    config = (mounts.cell("a"), mounts.gate("g"))
    cells = {"a": ["broken", 1.0, 0.0, 1.0], "g": ["veto", "none", "none", "none"]}
    parts = make(*config, mode="per_mount", args=grpo())
    assert total(parts, **cells) == [-1.0, 1.0, 0.0, 1.0]


def test_a_mount_that_does_not_apply_adds_nothing(make: Any, mounts: Any) -> None:
    config = (mounts.cell("a"), mounts.cell("b", applies_to="kind == 'math'"))
    cells = {"a": [1.0] * 4, "b": [0.5] * 4, "kind": ["math", "code", "math", "code"]}
    parts = make(*config, mode="per_mount", args=grpo())
    completions = ["x"] * 4
    assert call(parts.reward_funcs[1], completions=completions, **cells) == [0.5, None, 0.5, None]
    assert total(parts, **cells) == [1.5, 1.0, 1.5, 1.0]


def test_with_gdpo_a_gate_is_one_more_reward(make: Any, mounts: Any) -> None:
    args = grpo(multi_objective_aggregation="normalize_then_sum")
    parts = make(mounts.cell("a"), mounts.gate("g"), mode="per_mount", args=args)
    cells = {"a": [1.0, 1.0, 1.0, 0.5], "g": ["none", "veto", "none", "penalty"]}
    assert call(parts.reward_funcs[1], **cells) == [0.0, -1.0, 0.0, -1.0]


def test_the_functions_score_a_call_once(make: Any, mounts: Any, peer_plugin: Any) -> None:
    parts = make({"type": "seen", "plugin": "seen"}, mounts.cell("a"), mode="per_mount")
    total(parts, a=[1.0, 0.0])
    total(parts, a=[1.0, 0.0])
    import peer_kit

    assert len(peer_kit.Seen.batches) == 2


def test_trainer_that_weighs_otherwise_is_refused(make: Any, mounts: Any) -> None:
    parts = make(mounts.cell("a", weight=2.0), mode="per_mount", args=grpo(2))
    trainer = Trainer(reward_funcs=parts.reward_funcs, reward_weights=[1.0])
    with pytest.raises(ConfigError, match="the trainer weighs a with 1, the config with 2"):
        call(parts.reward_funcs[0], trainer=trainer, a=[1.0, 0.0])
    trainer.reward_weights = parts.reward_weights
    assert call(parts.reward_funcs[0], trainer=trainer, a=[1.0, 0.0]) == [1.0, 0.0]


# -- the call --------------------------------------------------------------------------------------


def test_conversations_give_their_last_turn_and_the_whole_exchange(make: Any) -> None:
    function = make({"type": "seen", "plugin": "seen"}, args=grpo(2)).reward_funcs[0]
    prompt = [{"role": "user", "content": "How many?"}]
    turns = [
        {"role": "assistant", "content": "I look."},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": [{"type": "text", "text": "Seven."}]},
    ]
    call(
        function,
        step=3,
        prompts=[prompt, prompt],
        completions=[turns, turns[:1]],
        completion_ids=[[4, 5], [6]],
        trainer=Trainer(eos_token_ids=[5], _tokenizer=SimpleNamespace(pad_token_id=0)),
    )
    import peer_kit

    batch = peer_kit.Seen.batches[-1]
    assert batch.responses == ("Seven.", "I look.")
    assert batch.prompt_messages[0] == prompt
    assert batch.trajectories[0] == [*prompt, *turns]
    assert [ids.tolist() for ids in batch.response_ids] == [[4, 5], [6]]
    assert batch.finish_reason == ("stop", "length")
    assert (batch.step, batch.training, batch.group_ids) == (3, True, (0, 0))


def test_figures_and_columns_go_to_trls_logs(fused: Any, mounts: Any) -> None:
    function, trainer = fused(mounts.cell("a", weight=2.0), args=grpo()), Trainer()
    call(function, trainer=trainer, a=[1.0, "broken", 0.5, 0.0])
    assert trainer.metrics["reward/a/mean"] == 0.5
    assert trainer.metrics["reward/a/failed"] == 0.25
    assert trainer.metrics["weights/a"] == 2.0
    assert trainer.columns["score/a"] == [1.0, None, 0.5, 0.0]
    assert trainer.columns["reward_note"] == ["", "a failed", "", ""]


def test_coroutine_functions_give_the_same(make: Any, mounts: Any) -> None:
    config = (mounts.cell("a", weight=2.0), {"type": "later", "plugin": "later"})
    cells = {"a": [1.0, "broken", 0.5, 0.0], "completions": ["x", "yy", "zzz", ""]}
    parts = make(*config, mode="per_mount", asynchronous=True, args=grpo())

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(call(function, **cells) for function in parts.reward_funcs))

    got = asyncio.run(all_at_once())
    assert got == [[1.0, None, 0.5, 0.0], [1.0, None, 3.0, 0.0]]
    assert asyncio.iscoroutinefunction(type(parts.reward_funcs[0]).__call__)
    fresh = {**cells, "completions": list(cells["completions"])}
    assert asyncio.run(call(parts.reward_funcs[0], **fresh)) == got[0]  # on a second loop


# -- steps, weights, evaluation --------------------------------------------------------------------

LINE = {"linear": {"from": 2.0, "to": 0.0, "steps": 4}}


def test_a_schedule_follows_the_trainers_step(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a", weight=LINE), mounts.cell("b"), args=grpo(2))
    cells = {"a": [1.0, 0.0], "b": [0.0, 0.0]}
    assert [call(function, step=step, **cells)[0] for step in (0, 1, 4)] == [2.0, 1.5, 0.0]
    with pytest.raises(ConfigError, match="tells no step"):
        call(fused(mounts.cell("a", weight=LINE), mounts.cell("b")), step=None, **cells)


def test_evaluation_has_the_weights_of_step_0(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a", weight=LINE), mounts.cell("b"), args=grpo(2))
    cells = {"a": [1.0, 0.0], "b": [0.5, 0.0]}
    assert call(function, step=3, trainer=Trainer(training=False), **cells) == [2.5, 0.0]


def test_evaluation_may_score_by_other_rewards(fused: Any, mounts: Any) -> None:
    function = fused(mounts.cell("a"), eval_reward=mounts.cell("b"), args=grpo(2))
    cells = {"a": [1.0, 0.0], "b": [0.25, 0.5]}
    assert call(function, **cells) == [1.0, 0.0]
    assert call(function, trainer=Trainer(training=False), **cells) == [0.25, 0.5]


def test_a_live_change_holds_from_the_next_step_on(fused: Any, mounts: Any, tmp_path: Path) -> None:
    file = tmp_path / "live" / "weights.db"
    function = fused(mounts.cell("a"), args=grpo(2), weights=file)
    assert call(function, step=0, a=[1.0, 0.0]) == [1.0, 0.0]
    store = WeightStore({"a": 1.0}, path=file)
    store.update({"a": 3.0}, author="test")
    store.close()
    assert call(function, step=0, a=[1.0, 0.0]) == [1.0, 0.0]  # the step keeps its lease
    assert call(function, step=1, a=[1.0, 0.0]) == [3.0, 0.0]
    assert call(function, step=1, trainer=Trainer(training=False), a=[1.0, 0.0]) == [1.0, 0.0]


def test_weights_of_a_control_plane_hold_for_a_step(
    fused: Any, mounts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl_core.control import ControlServer, ControlState

    monkeypatch.setattr("verl_core.integrations.remote_weights._PATIENCE", 0.0)
    store = WeightStore({"a": 1.0}, run_id="far")
    with ControlServer(ControlState(run_id="far", store=store), "127.0.0.1", 0) as server:
        function = fused(mounts.cell("a"), args=grpo(2), weights=server.url)
        assert call(function, step=0, a=[1.0, 0.0]) == [1.0, 0.0]
        store.update({"a": 3.0}, author="test")
        assert call(function, step=0, a=[1.0, 0.0]) == [1.0, 0.0]
        assert call(function, step=1, a=[1.0, 0.0]) == [3.0, 0.0]
    assert call(function, step=2, a=[1.0, 0.0]) == [3.0, 0.0]  # it is gone: the last known hold
    store.close()
    other = WeightStore({"b": 1.0}, run_id="other")
    with ControlServer(ControlState(run_id="other", store=other), "127.0.0.1", 0) as server:
        function = fused(mounts.cell("a"), args=grpo(2), weights=server.url)
        with pytest.raises(ConfigError, match="differ in the mounts a, b"):
            call(function, step=0, a=[1.0, 0.0])
    other.close()


# -- other processes -------------------------------------------------------------------------------


CHILD = """
import json, pickle, sys

functions = pickle.load(open(sys.argv[1], "rb"))
rows = {"prompts": ["Why?"] * 2, "completions": ["x", "y"], "completion_ids": [[1], [2]]}
print(json.dumps([function(**rows, a=[1.0, "no"], b=[0.5, 1.0]) for function in functions]))
"""


@pytest.mark.parametrize("mode", ["fused", "per_mount"])
def test_functions_pickle_into_another_process_and_load_there(
    make: Any, mounts: Any, mode: str, peer_plugin: Any, tmp_path: Path
) -> None:
    functions = make(mounts.cell("a"), mounts.cell("b"), mode=mode, args=grpo(2)).reward_funcs
    before = [call(f, a=[1.0, "no"], b=[0.5, 1.0]) for f in functions]
    (tmp_path / "functions.pickle").write_bytes(pickle.dumps(functions))
    paths = os.pathsep.join([str(peer_plugin.folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "functions.pickle")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == before


def test_async_grpo_hands_over_one_whole_group(make: Any, mounts: Any) -> None:
    function = make({"type": "pairs", "plugin": "pairs"}, args=AsyncGRPOConfig(num_generations=3))
    completions = ["a", "abc", "ab"]
    assert call(function.reward_funcs[0], step=None, completions=completions) == [0.0, 1.0, 0.0]
