"""What a run asks for beside its mounts and no other trainer carries is refused by each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_core.config import load_run_config
from verl_core.integrations.fitting import read_run
from verl_core.integrations.openrlhf import reward_function
from verl_core.integrations.openrlhf_server import reward_app
from verl_core.integrations.trl import reward_functions
from verl_core.integrations.verl_rules import carried
from verl_reward_sdk import ConfigError


def trl(path: Path) -> object:
    args = SimpleNamespace(
        num_generations=4, per_device_train_batch_size=4, per_device_eval_batch_size=4
    )
    return reward_functions(path, args=args)


TRAINERS: dict[str, Callable[[Path], Any]] = {
    "TRL": trl,
    "OpenRLHF": reward_function,
    "verl": lambda path: carried(read_run(path)),
}


def refusal(trainer: str, path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        TRAINERS[trainer](path)
    return str(caught.value)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    ("more", "path", "what"),
    [
        ({"dataflow": {"advantage": ["gdpo"]}}, "dataflow.advantage[0]", "gdpo: it is an adv"),
        (
            {"dataflow": {"shaping": [{"name": "own", "node_class": "mine.Own"}]}},
            "dataflow.shaping[0]",
            "the node own: nodes run in our own trainer's steps",
        ),
        ({"dataflow": {"shaping": ["theirs"]}}, "dataflow.shaping[0]", "the node theirs"),
        (
            {"algorithm": {"kl_coef": 0.01, "kl_in": "reward"}},
            "algorithm.kl_in",
            "kl_in: reward with kl_coef: 0.01",
        ),
    ],
)
def test_what_only_our_trainer_makes_of_rewards_is_refused_with_its_place(
    run_yaml: Any, mounts: Any, trainer: str, more: Any, path: str, what: str
) -> None:
    said = refusal(trainer, run_yaml(mounts.cell("a"), **more))
    assert f": {path}: {trainer} cannot carry {what}" in said
    assert "run.yaml:" in said.partition(path)[0]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_a_trainers_own_has_no_effect_and_is_not_refused(
    run_yaml: Any, mounts: Any, trainer: str
) -> None:
    path = run_yaml(
        mounts.cell("a"),
        dataflow={"advantage": ["grpo"]},
        algorithm={"kl_coef": 0.01, "allow_double_kl": True},
        optim={"lr": 0.1},
        rollout={"n": 3},
    )
    assert TRAINERS[trainer](path) is not None


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_resolved_config_of_a_run_asks_for_no_more_than_its_mounts_keys(
    run_yaml: Any, mounts: Any, trainer: str, tmp_path: Path
) -> None:
    """What it writes down of the run itself is off: a KL of 0 is none."""
    keys = {"missing": "zero", "on_error": {"default": 0.0}, "max_error_rate": 0.5}
    written = run_yaml(mounts.cell("a", **keys), model={"path": "m"}, data={"train": "d.jsonl"})
    path = tmp_path / "config.yaml"
    text = load_run_config(written).to_yaml()
    assert "kl_in: loss" in text
    path.write_text(text.replace("kl_in: loss", "kl_in: reward"), "utf-8")
    if trainer == "verl":
        assert "max_error_rate" in refusal(trainer, path)
    else:
        assert TRAINERS[trainer](path) is not None


def test_gae_is_refused_where_no_critic_is_trained(run_yaml: Any, mounts: Any) -> None:
    path = run_yaml(mounts.cell("a"), dataflow={"advantage": ["gae"]})
    assert "TRL cannot carry gae: it needs a critic" in refusal("TRL", path)
    for trainer in ("OpenRLHF", "verl"):
        assert TRAINERS[trainer](path) is not None


@pytest.mark.parametrize("trainer", ["OpenRLHF", "verl"])
def test_other_rewards_for_evaluation_are_refused_where_it_is_not_told_apart(
    run_yaml: Any, mounts: Any, trainer: str
) -> None:
    path = run_yaml(mounts.cell("a"), eval_reward=[mounts.cell("a", weight=2.0)])
    assert f"eval_reward: {trainer} cannot carry eval_reward: " in refusal(trainer, path)
    same = run_yaml(mounts.cell("a"), eval_reward=[mounts.cell("a")], name="same")
    assert TRAINERS[trainer](same) is not None


def test_openrlhfs_server_refuses_alike(run_yaml: Any, mounts: Any) -> None:
    path = run_yaml(mounts.cell("a"), dataflow={"advantage": ["gdpo"]})
    with pytest.raises(ConfigError, match="OpenRLHF cannot carry gdpo"):
        reward_app(path)


# -- TRL has GDPO of its own -----------------------------------------------------------------------


def grpo(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        num_generations=4, per_device_train_batch_size=4, per_device_eval_batch_size=4, **more
    )


FIRST = {"multi_objective_aggregation": "normalize_then_sum"}


def test_gdpo_is_carried_by_trls_own(run_yaml: Any, mounts: Any) -> None:
    path = run_yaml(mounts.cell("a", weight=2.0), dataflow={"advantage": ["gdpo"]})
    rewards = reward_functions(path, "per_mount", args=grpo(**FIRST))
    assert rewards.reward_weights == [2.0]


@pytest.mark.parametrize(
    ("mode", "args", "hint"),
    [
        ("fused", None, "mode='per_mount' and args=GRPOConfig(multi_objective_aggregation="),
        ("fused", grpo(**FIRST), "TRL has it with mode='per_mount')"),
        ("per_mount", grpo(), "TRL has it with args=GRPOConfig(multi_objective_aggregation="),
    ],
)
def test_the_hint_of_gdpo_names_what_is_missing_in_trl(
    run_yaml: Any, mounts: Any, mode: Any, args: Any, hint: str
) -> None:
    path = run_yaml(mounts.cell("a"), dataflow={"advantage": ["gdpo"]})
    with pytest.raises(ConfigError) as caught:
        reward_functions(path, mode, args=args)
    assert hint in str(caught.value)


@pytest.mark.parametrize("key", ["weight", "penalty"])
def test_evaluation_that_trl_would_sum_otherwise_is_refused(
    run_yaml: Any, mounts: Any, key: str
) -> None:
    other = [mounts.cell("a", weight=3.0 if key == "weight" else 1.0)]
    other.append(mounts.gate("g", penalty=-2.0 if key == "penalty" else -1.0))
    path = run_yaml(mounts.cell("a"), mounts.gate("g"), eval_reward=other)
    with pytest.raises(ConfigError, match="sums evaluation by the weights of training") as caught:
        reward_functions(path, "per_mount", args=grpo())
    name = "a" if key == "weight" else "g"
    assert caught.value.path == f"eval_reward.{name}.{key}"
    assert reward_functions(path, args=grpo()).reward_weights == [1.0]
