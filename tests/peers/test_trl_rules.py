"""What of a config TRL can carry: the rest is refused at load, by YAML path and with the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_core.config import load_run_config
from verl_core.integrations.trl import reward_functions
from verl_reward_sdk import ConfigError


def grpo(n: int = 4, rows: int = 4, **more: Any) -> SimpleNamespace:
    values = {
        "num_generations": n,
        "per_device_train_batch_size": rows,
        "per_device_eval_batch_size": n,
        "steps_per_generation": 1,
    }
    return SimpleNamespace(**values | more)


class AsyncGRPOConfig(SimpleNamespace):
    """Known by its name."""


@pytest.fixture
def refusal(run_yaml: Callable[..., Path]) -> Callable[..., ConfigError]:
    """The error that `reward_functions` raises."""

    def raised(*mounts: Any, fusion: Any = None, **options: Any) -> ConfigError:
        more = {"fusion": fusion} if fusion else {}
        path = run_yaml(*mounts, **more)
        with pytest.raises(ConfigError) as caught:
            reward_functions(path, **options)
        return caught.value

    return raised


# -- groups ----------------------------------------------------------------------------------------

PAIRS = {"type": "pairs", "plugin": "pairs"}


def test_group_scope_needs_the_trainers_arguments(refusal: Any) -> None:
    error = refusal(PAIRS)
    assert error.path == "reward.pairs"
    assert "no group ids" in str(error)
    assert "args=GRPOConfig" in str(error)


def test_group_that_may_straddle_processes_is_refused(refusal: Any) -> None:
    error = refusal(PAIRS, args=grpo(n=4, rows=6))
    assert "sees 6 rows of training at once, in groups of 4" in str(error)
    assert "two processes" in str(error)


def test_several_steps_a_generation_make_groups_whole(run_yaml: Any) -> None:
    rewards = reward_functions(run_yaml(PAIRS), args=grpo(4, 2, steps_per_generation=2))
    assert len(rewards.reward_funcs) == 1


def test_evaluation_groups_must_be_whole_too(refusal: Any) -> None:
    error = refusal(PAIRS, args=grpo(per_device_eval_batch_size=2))
    assert "2 rows of evaluation at once, in groups of 4" in str(error)


def test_neutral_that_is_asked_for_needs_groups(refusal: Any, mounts: Any) -> None:
    error = refusal(mounts.cell("a", missing="neutral"))
    assert error.path == "reward.a.missing"
    assert "TRL cannot carry missing: neutral" in str(error)


def test_zero_and_mask_need_no_groups(run_yaml: Any, mounts: Any, caplog: Any) -> None:
    config = (mounts.cell("a", missing="zero"), mounts.cell("b", missing="mask"))
    with caplog.at_level(logging.WARNING):
        reward_functions(run_yaml(*config))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("way", "args", "processes", "why"),
    [
        ("group", None, 1, "no group ids"),
        ("group", grpo(4, rows=6), 1, "a group may lie in two processes"),
        ("batch", grpo(), 2, "the rows of one call only"),
        ("batch", AsyncGRPOConfig(num_generations=4), 1, "the rows of one call only"),
        ("running", grpo(), 1, "keeps nothing of a reward"),
        (
            "group",
            grpo(multi_objective_aggregation="normalize_then_sum"),
            1,
            "normalises every reward itself",
        ),
    ],
)
def test_normalisation_that_needs_more_than_a_call_is_refused(
    refusal: Any,
    mounts: Any,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    args: Any,
    processes: int,
    why: str,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    error = refusal(mounts.cell("a", normalize=way), args=args)
    assert error.path == "reward.a.normalize"
    assert f"TRL cannot carry normalize: {way}: " in str(error)
    assert why in str(error)


@pytest.mark.parametrize("way", ["group", "batch"])
def test_normalisation_within_a_call_is_carried(run_yaml: Any, mounts: Any, way: str) -> None:
    rewards = reward_functions(run_yaml(mounts.cell("a", normalize=way)), args=grpo())
    assert rewards.reward_funcs[0].scorer.plan.sets.train.mounts[0].normalize == way


def test_an_order_needs_groups_and_a_policy_that_learns_is_refused(
    refusal: Any, run_yaml: Any, mounts: Any
) -> None:
    order = {"policy": "lexicographic"}
    error = refusal(mounts.cell("a"), mounts.cell("b"), fusion=order)
    assert error.path == "fusion.policy"
    assert "TRL cannot carry policy: lexicographic here: " in str(error)
    path = run_yaml(mounts.cell("a"), mounts.cell("b"), fusion=order)
    assert reward_functions(path, args=grpo()).reward_weights == [1.0]
    learns = {"policy": "constrained", "bounds": {"a": 0.5}}
    error = refusal(mounts.cell("a"), fusion=learns, args=grpo())
    assert error.path == "fusion.policy"
    assert "it learns at the end of each step" in str(error)


# -- gates -----------------------------------------------------------------------------------------


def test_skip_with_a_baseline_is_refused(refusal: Any, mounts: Any) -> None:
    gate = mounts.gate("g", skip_update=True, in_baseline=True)
    error = refusal(mounts.cell("a"), gate, args=grpo())
    assert error.path == "reward.g.in_baseline"
    assert "out of its group's baseline as well" in str(error)


def test_skip_beside_a_kl_term_is_refused(refusal: Any, mounts: Any) -> None:
    error = refusal(mounts.cell("a"), mounts.gate("g", skip_update=True), args=grpo(beta=0.1))
    assert error.path == "reward.g.skip_update"
    assert "beta=0.1" in str(error)


def test_skip_without_a_baseline_is_carried_and_said_once(
    run_yaml: Any, mounts: Any, caplog: Any
) -> None:
    path = run_yaml(mounts.cell("a"), mounts.gate("g", skip_update=True), mounts.gate("h"))
    with caplog.at_level(logging.WARNING):
        reward_functions(path, args=grpo())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "a skipped row is returned as None" in said[0]


def test_that_token_scores_count_by_their_sum_is_said_once(run_yaml: Any, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        reward_functions(run_yaml({"type": "tokens", "plugin": "tokens"}), args=grpo())
    said = [record.getMessage() for record in caplog.records]
    assert said == ["TRL: token scores of tokens count by their sum: TRL takes one a row"]


def test_node_that_reads_tensors_is_refused(refusal: Any) -> None:
    node = {"type": "custom", "node_class": "safety_reward.SafetyRewardNode"}
    error = refusal(node)
    assert error.path == "reward.safety_reward.node_class"
    assert "reads the step's tensors" in str(error)


# -- one function a mount --------------------------------------------------------------------------


def test_schedule_is_refused_where_trl_sums(refusal: Any, mounts: Any) -> None:
    line = {"linear": {"from": 2.0, "to": 1.0, "steps": 4}}
    error = refusal(mounts.cell("a", weight=line), mode="per_mount", args=grpo())
    assert error.path == "reward.a.weight"
    assert "reads when it starts" in str(error)


def test_live_weights_are_refused_where_trl_sums(refusal: Any, mounts: Any, tmp_path: Any) -> None:
    error = refusal(mounts.cell("a"), mode="per_mount", weights=tmp_path / "weights.db")
    assert "mode='fused' follows live weights" in str(error)


def test_other_evaluation_mounts_are_refused_where_trl_sums(run_yaml: Any, mounts: Any) -> None:
    path = run_yaml(mounts.cell("a"), eval_reward=mounts.cell("b"))
    with pytest.raises(ConfigError, match="eval_reward has other mounts: b"):
        reward_functions(path, "per_mount", args=grpo())


def test_async_grpo_ignores_weights_so_that_others_than_1_are_refused(
    refusal: Any, mounts: Any
) -> None:
    args = AsyncGRPOConfig(num_generations=4)
    error = refusal(mounts.cell("a", weight=2.0), mode="per_mount", args=args)
    assert "AsyncGRPO ignores reward weights" in str(error)
    line = {"linear": {"from": 2.0, "to": 1.0, "steps": 4}}
    assert "no step" in str(refusal(mounts.cell("a", weight=line), args=args))


# -- processes, sources ----------------------------------------------------------------------------


def test_rank_0_alone_says_what_is_replaced(
    run_yaml: Any, mounts: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    path = run_yaml(mounts.cell("a"))
    monkeypatch.setenv("RANK", "1")
    with caplog.at_level(logging.WARNING):
        reward_functions(path)
    assert caplog.records == []


def test_a_whole_run_and_a_config_object_are_sources_too(run_yaml: Any, mounts: Any) -> None:
    path = run_yaml(mounts.cell("a"), model={"path": "m"}, data={"train": "d.jsonl"})
    run = load_run_config(path)
    for source in (path, str(path), run, run.rewards()):
        assert reward_functions(source, "per_mount").reward_weights == [1.0]
    changed = reward_functions(path, "per_mount", overrides=["reward.a.weight=3"])
    assert changed.reward_weights == [3.0]


def test_a_fault_of_the_yaml_has_line_and_column(run_yaml: Any, mounts: Any) -> None:
    path = run_yaml(mounts.cell("a", wieght=2.0))
    with pytest.raises(ConfigError, match=r"run.yaml:\d+:\d+: .*wieght.*weight"):
        reward_functions(path)


def test_unknown_mode_is_refused(run_yaml: Any, mounts: Any) -> None:
    with pytest.raises(ConfigError, match="fused or per_mount"):
        reward_functions(run_yaml(mounts.cell("a")), "sum")  # type: ignore[arg-type]
