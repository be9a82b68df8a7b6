"""The reward functions inside TRL's real trainers, on a tiny random model.

Every cell of TRL's table in docs/peers.md. Needs TRL: ``make test-peers``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL has an environment of its own: make test-peers")

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from verl_core.integrations.trl import reward_functions

ROWS, GROUP = 8, 4
QUESTIONS = ["How much?", "How long?", "What else?", "Why so?"]


class Watched(GRPOTrainer):
    """Keeps what each generation was given for its rows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outputs: list[dict[str, Any]] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        rewards = {name: list(values) for name, values in self._logs["rewards"].items()}
        self.outputs.append({**output, "rewards": rewards})
        return output


@pytest.fixture
def grpo(tmp_path: Path) -> Callable[..., GRPOConfig]:
    """A `GRPOConfig` for two groups of four a step."""

    def config(**options: Any) -> GRPOConfig:
        values = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": ROWS,
            "num_generations": GROUP,
            "max_completion_length": 8,
            "max_steps": 1,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
            "use_cpu": True,
            "bf16": False,
            "seed": 3,
            "disable_tqdm": True,
        }
        return GRPOConfig(**{**values, **options})

    return config


@pytest.fixture
def trained(
    run_yaml: Callable[..., Path], grpo: Callable[..., GRPOConfig], tiny_model_dir: Path
) -> Callable[..., Watched]:
    """A trainer that has trained on these mounts."""

    def train(
        *mounts: Any,
        more: dict[str, Any] | None = None,
        rewards: dict[str, Any] | None = None,
        columns: dict[str, list[Any]] | None = None,
        chat: bool = True,
        evaluate: bool = False,
        **options: Any,
    ) -> Watched:
        args = grpo(**options)
        given = {"args": args, **(rewards or {})}
        functions = reward_functions(run_yaml(*mounts, **(more or {})), **given)
        if (rewards or {}).get("mode") == "per_mount":
            args.reward_weights = functions.reward_weights
        prompts = [[{"role": "user", "content": q}] if chat else q for q in QUESTIONS]
        data = Dataset.from_dict({"prompt": prompts, **(columns or {})})
        trainer = Watched(
            model=str(tiny_model_dir),
            args=args,
            reward_funcs=functions.reward_funcs,
            train_dataset=data,
            eval_dataset=data if evaluate else None,
        )
        trainer.train()
        if evaluate:
            trainer.evaluate()
        functions.close()
        return trainer

    return train


def advantages(trainer: Watched, call: int = 0) -> list[float]:
    """(B,) the advantages of one generation, as TRL gave them to the loss."""
    return [round(value, 3) for value in trainer.outputs[call]["advantages"].tolist()]


def logged(trainer: Watched, key: str) -> list[float]:
    """A metric's values in the order in which they were logged."""
    return [entry[key] for entry in trainer.state.log_history if key in entry]


# -- the table -------------------------------------------------------------------------------------


def test_mask_a_failed_row_has_advantage_0_and_leaves_the_baseline(
    trained: Any, mounts: Any
) -> None:
    trainer = trained(mounts.slots("a", 1.0, "broken", 0.5, 0.0))
    # Mean 0.5 and deviation 0.5 of the three that were scored.
    assert advantages(trainer) == [1.0, 0.0, 0.0, -1.0] * 2
    assert np.isnan(trainer.outputs[0]["rewards"]["reward"][1])


def test_mask_a_failed_rows_tokens_are_counted_all_the_same(trained: Any, mounts: Any) -> None:
    output = trained(mounts.slots("a", 1.0, "broken", 0.5, 0.0)).outputs[0]
    lengths = output["completion_mask"].sum(dim=1)
    assert lengths[1] > 0
    assert output["num_items_in_batch"] == lengths.sum()


def test_abstain_neither_pays_nor_costs(trained: Any, mounts: Any) -> None:
    trainer = trained(mounts.slots("a", 1.0, None, 0.5, 0.0), mounts.slots("b", 0.0))
    assert trainer.outputs[0]["rewards"]["reward"][:4] == [1.0, 0.5, 0.5, 0.0]
    assert advantages(trainer)[1] == 0.0
    assert advantages(trainer)[2] == 0.0


def test_abstain_is_none_for_a_trainer_whose_groups_are_unknown(trained: Any, mounts: Any) -> None:
    config = (mounts.slots("a", 1.0, None, 0.5, 0.0), mounts.slots("b", 0.0))
    trainer = trained(*config, rewards={"args": None})
    assert advantages(trainer) == [1.0, 0.0, 0.0, -1.0] * 2
    assert np.isnan(trainer.outputs[0]["rewards"]["reward"][1])


def test_skip_update_leaves_update_and_baseline(trained: Any, mounts: Any) -> None:
    words = mounts.slot_words("g", "none", "veto", "none", "none", skip_update=True)
    trainer = trained(mounts.slots("a", 1.0, 1.0, 0.5, 0.0), words)
    assert advantages(trainer) == [1.0, 0.0, 0.0, -1.0] * 2


def test_skip_update_is_refused_by_a_trainer_with_a_kl_term(trained: Any, mounts: Any) -> None:
    from verl_reward_sdk import ConfigError

    words = mounts.slot_words("g", "none", skip_update=True)
    with pytest.raises(ConfigError, match=r"KL term \(beta=0.1\)"):
        trained(mounts.slots("a", 1.0), words, beta=0.1, rewards={"args": None})


def test_veto_keeps_its_gradient(trained: Any, mounts: Any) -> None:
    words = mounts.slot_words("g", "none", "veto", "none", "none")
    trainer = trained(mounts.slots("a", 0.5, 0.5, 0.5, 0.5), words)
    assert advantages(trainer)[1] < -1.0


def test_group_scope_sees_whole_groups(trained: Any) -> None:
    trainer = trained({"type": "pairs", "plugin": "pairs"})
    completions = [turns[0]["content"] for turns in trainer._logs["completion"]]
    for first in (0, GROUP):
        lengths = [len(text) for text in completions[first : first + GROUP]]
        found = trainer.outputs[0]["rewards"]["reward"][first : first + GROUP]
        assert found == [float(length == max(lengths)) for length in lengths]


def test_token_rewards_count_with_their_sum(trained: Any) -> None:
    trainer = trained({"type": "tokens", "plugin": "tokens"}, chat=False)
    lengths = trainer.outputs[0]["completion_mask"].sum(dim=1).tolist()
    assert trainer.outputs[0]["rewards"]["reward"] == [0.25 * length for length in lengths]
    assert trainer.outputs[0]["advantages"].shape == (ROWS,)  # one a row, whatever the token


# -- modes -----------------------------------------------------------------------------------------


def config_of(mounts: Any) -> tuple[Any, ...]:
    return (
        mounts.slots("a", 1.0, 0.5, None, "broken", 0.25, 1.0, 1.0, 0.0, weight=2.0),
        {"type": "vowels", "plugin": "vowels", "weight": 0.5},
        mounts.slot_words("g", "none", "veto", "none", "none", "penalty", "skip", "none", "veto"),
    )


def test_one_function_a_mount_gives_the_advantages_of_the_fused_one(
    trained: Any, mounts: Any
) -> None:
    whole = trained(*config_of(mounts))
    parts = trained(*config_of(mounts), rewards={"mode": "per_mount"})
    torch.testing.assert_close(
        parts.outputs[0]["advantages"], whole.outputs[0]["advantages"], rtol=1e-4, atol=1e-4
    )
    assert list(parts.outputs[0]["rewards"]) == ["a", "vowels", "g"]
    assert logged(parts, "rewards/a/mean")[0] == pytest.approx(
        3.5 / 6
    )  # the abstention: its group's mean


def test_coroutines_give_the_same_advantages(trained: Any, mounts: Any) -> None:
    for mode in ("fused", "per_mount"):
        plain = trained(*config_of(mounts), rewards={"mode": mode})
        later = trained(*config_of(mounts), rewards={"mode": mode, "asynchronous": True})
        assert advantages(later) == advantages(plain)


def test_trls_gdpo_normalises_every_mount(trained: Any, mounts: Any) -> None:
    config = (mounts.slots("a", 1.0, 0.0, 0.0, 0.0), mounts.slots("b", 0.0, 0.0, 0.0, 100.0))
    options = {"multi_objective_aggregation": "normalize_then_sum"}
    trainer = trained(*config, rewards={"mode": "per_mount"}, **options)
    found = advantages(trainer)
    assert found[0] == pytest.approx(found[3], abs=1e-2)  # whatever their scale


def test_a_run_of_some_steps_learns_logs_and_follows_a_schedule(
    trained: Any, mounts: Any, tiny_model_dir: Path
) -> None:
    line = {"linear": {"from": 2.0, "to": 0.0, "steps": 4}}
    trainer = trained(
        {"type": "vowels", "plugin": "vowels", "weight": line},
        mounts.cell("known"),
        columns={"known": [1.0, 0.0, 0.5, 0.25]},
        max_steps=3,
    )
    assert logged(trainer, "weights/vowels") == [2.0, 1.5, 1.0]
    assert all(0.0 <= mean <= 1.0 for mean in logged(trainer, "reward/vowels/mean"))
    assert all(np.isfinite(loss) for loss in logged(trainer, "loss"))
    before = weights_of(tiny_model_dir)
    after = next(trainer.model.parameters()).detach()
    assert not torch.equal(before, after)


def weights_of(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    return next(AutoModelForCausalLM.from_pretrained(folder).parameters()).detach()


def test_plain_texts_are_scored_like_conversations(trained: Any, mounts: Any) -> None:
    trainer = trained({"type": "vowels", "plugin": "vowels"}, chat=False)
    texts = list(trainer._logs["completion"])
    shares = [sum(c in "aeiou" for c in text.lower()) / max(1, len(text)) for text in texts]
    assert trainer.outputs[0]["rewards"]["reward"] == pytest.approx(shares, rel=1e-6)


def test_evaluation_is_told_from_training(trained: Any, mounts: Any) -> None:
    trainer = trained(
        mounts.slots("a", 1.0, 0.0),
        more={"eval_reward": mounts.slots("b", 0.25)},
        evaluate=True,
        eval_strategy="no",
        per_device_eval_batch_size=ROWS,
    )
    assert set(trainer.outputs[0]["rewards"]["reward"]) == {0.0, 1.0}
    assert logged(trainer, "eval_reward") == [0.25]
    assert logged(trainer, "eval_reward/b/mean") == [0.25]


def test_a_group_in_two_processes_keeps_its_own_mean(
    run_yaml: Any, mounts: Any, tiny_model_dir: Path, peer_plugin: Any, tmp_path: Path
) -> None:
    """Two processes with half a group each: what needs the group is refused, the rest is None."""
    path = run_yaml(mounts.slots("a", 1.0, None), mounts.slots("b", 0.0))
    script = tmp_path / "two.py"
    script.write_text(TWO, encoding="utf-8")
    words = [str(path), str(tiny_model_dir), str(tmp_path)]
    paths = os.pathsep.join([str(peer_plugin.folder), os.environ.get("PYTHONPATH", "")])
    ranks = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *ranks, str(script), *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "rank0.json").read_text("utf-8"))
    assert found["refused"].startswith("reward.pairs: TRL cannot carry a reward that compares")
    # Each process: [1, None]; of the group [1, None, 1, None] the two scored rows are equal.
    assert found["advantages"] == [0.0, 0.0]
    assert "missing: mask in place of neutral" in done.stderr


TWO = """
import json, sys
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from verl_core.integrations.trl import reward_functions
from verl_reward_sdk import ConfigError

path, model, out = sys.argv[1:]
args = GRPOConfig(
    output_dir=out + "/out", per_device_train_batch_size=2, num_generations=4, use_cpu=True,
    max_completion_length=4, max_steps=1, report_to=[], save_strategy="no", bf16=False,
)
pairs = {"path": path, "pairs": "[{type: pairs, plugin: pairs}]"}
try:
    reward_functions(path, args=args, overrides=["reward=[{type: pairs, plugin: pairs}]"])
    refused = "not refused"
except ConfigError as error:
    refused = f"{error.path}: {error.message}"
rewards = reward_functions(path, args=args)

class Watched(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        self.seen = super()._generate_and_score_completions(inputs)
        return self.seen

data = Dataset.from_dict({"prompt": ["How much?", "Why so?"]})
trainer = Watched(model=model, args=args, reward_funcs=rewards.reward_funcs, train_dataset=data)
trainer.train()
record = {"refused": refused, "advantages": trainer.seen["advantages"].tolist()}
with open(f"{out}/rank{args.process_index}.json", "w") as file:
    json.dump(record, file)
"""


# -- AsyncGRPO -------------------------------------------------------------------------------------


def test_async_grpos_own_scoring_takes_the_functions(run_yaml: Any, mounts: Any) -> None:
    """Its rollout loop needs vLLM; the part of it that scores a group does not."""
    worker = pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker")
    loop = next(
        kind
        for kind in vars(worker).values()
        if isinstance(kind, type) and "_score_group" in vars(kind)
    )
    args = type("AsyncGRPOConfig", (SimpleNamespace,), {})(num_generations=GROUP)
    config = (mounts.slots("a", 1.0, "broken", 0.5, 0.0), {"type": "pairs", "plugin": "pairs"})
    rewards = reward_functions(run_yaml(*config), args=args)
    group = SimpleNamespace(
        prompts=["Why?"] * GROUP,
        completions=["ab"] * GROUP,
        completions_ids=[[1, 2]] * GROUP,
        reward_kwargs={},
        env_rewards=[None] * GROUP,
        rollout_rewards=[None] * GROUP,
        tool_call_counts=[0] * GROUP,
        tool_failure_counts=[0] * GROUP,
        completions_sequences=[
            [SimpleNamespace(input_ids=[1], completion_mask=[1], old_log_probs=[0.0])]
        ]
        * GROUP,
        model_version=0,
        group_id=0,
    )
    owner = SimpleNamespace(
        reward_funcs=rewards.reward_funcs,
        reward_func_names=["reward"],
        _env_reward_types=[],
        _provides_rollout_reward=False,
    )
    samples = asyncio.run(loop._score_group(owner, group))
    found = [round(sample.advantage, 3) for sample in samples]
    assert found[1] == 0.0
    assert found[0] > 0.0 > found[3]
    rewards.close()
