"""The loop, end to end, on a tiny model with the real plugins."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file


def test_a_run_writes_everything_that_its_folder_promises(tiny_run, read_jsonl):
    folder = tiny_run.train()
    metrics = read_jsonl(folder / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3]
    for line in metrics:
        for name in ("reward/style/mean", "reward/overlap/mean", "reward/guard/rate"):
            assert math.isfinite(line[name])
        assert line["weights/style"] == 1.0
        assert line["weights/overlap"] == 0.5
        assert line["weights/revision"] == 1
        assert line["timing_s/rollout"] > 0
    samples = read_jsonl(folder / "samples.jsonl")
    assert {"prompt", "response", "reference", "fused", "explain"} <= samples[0].keys()
    before = read_jsonl(folder / "eval" / "before.jsonl")
    after = read_jsonl(folder / "eval" / "after.jsonl")
    assert [row["sample_id"] for row in before] == [row["sample_id"] for row in after]
    assert len(before) == 6
    assert (folder / "weights.db").is_file()
    assert (folder / "config.yaml").is_file()
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == [
        "step_000002",
        "step_000003",
    ]


def test_plain_lines_say_what_is_going_to_happen_and_what_happens(tiny_run, capsys, monkeypatch):
    monkeypatch.chdir(tiny_run.folder)
    tiny_run.train("trainer.steps=1", "rollout.batch_rows=2")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "runs/tiny: 1 step of 2 prompts x 4 responses, "
        "evaluation on 6 held-out prompts before and after"
    )
    began = lines.index("evaluating (before) ...")
    assert lines[began + 1 : began + 3] == [
        "evaluating (before): 2/6 prompts",
        "evaluating (before): 4/6 prompts",
    ]
    assert lines.count("step 1/1: rollout ...") == 1


def test_training_on_a_reward_raises_it(tiny_run, read_jsonl):
    tiny_run.config["reward"] = tiny_run.config["reward"][:1]
    tiny_run.config["rollout"] |= {"n": 16, "prompts_per_step": 2}
    tiny_run.config["optim"]["lr"] = 3e-3
    folder = tiny_run.train("trainer.steps=40", "trainer.checkpoint_every=0")
    scores = [line["reward/style/mean"] for line in read_jsonl(folder / "metrics.jsonl")]
    assert sum(scores[-8:]) / 8 > sum(scores[:8]) / 8 + 0.15


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tiny_run):
    first = load_file(tiny_run.train() / "checkpoints/step_000003/policy/model.safetensors")
    second = load_file(tiny_run.train() / "checkpoints/step_000003/policy/model.safetensors")
    other = load_file(tiny_run.train("seed=1") / "checkpoints/step_000003/policy/model.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_gradient_accumulation_equals_one_big_batch(tiny_run, mode):
    """Rows of unequal length, a masked row among them: the split must not matter."""
    tiny_run.config["reward"][2]["skip_update"] = True
    tiny_run.config["reward"][2]["init_kwargs"] = {"words": "words.txt"}
    (tiny_run.folder / "words.txt").write_text("a\ne\n", encoding="utf-8")
    settings = (f"algorithm.loss_agg={mode}", "trainer.steps=1", "algorithm.kl_coef=0.1")
    big = tiny_run.train(*settings, "trainer.micro_batch_rows=64")
    small = tiny_run.train(*settings, "trainer.micro_batch_rows=1")
    name = "checkpoints/step_000001/policy/model.safetensors"
    one, other = load_file(big / name), load_file(small / name)
    for key in one:
        assert torch.allclose(one[key], other[key], atol=2e-5), key


@pytest.mark.parametrize(
    "settings",
    [
        ("algorithm.kl_coef=0.05",),
        ("algorithm.kl_coef=0.05", "algorithm.kl_in=reward", "algorithm.kl_estimator=k1"),
        ("algorithm.epochs=2", "algorithm.minibatches=2"),
        ("algorithm.entropy_coef=0.01",),
        ("rollout.dtype=bfloat16", "optim.autocast=bfloat16"),
    ],
)
def test_variants_of_the_update_train_with_finite_losses(tiny_run, read_jsonl, settings):
    folder = tiny_run.train(*settings, "trainer.steps=2")
    for line in read_jsonl(folder / "metrics.jsonl"):
        assert math.isfinite(line["actor/loss"])
        assert line["actor/grad_norm"] > 0


def test_ppo_with_a_critic_trains_both(tiny_run, read_jsonl):
    tiny_run.config["dataflow"] = {
        "rollout": ["actor", "ref_model"],
        "reward": ["style", "overlap"],
        "safety": ["guard"],
        "advantage": ["gae"],
        "update": ["ppo"],
    }
    folder = tiny_run.train("optim.critic_lr=3e-3")
    metrics = read_jsonl(folder / "metrics.jsonl")
    assert metrics[0]["critic/values/mean"] == 0.0  # the head starts at zero
    assert metrics[-1]["critic/values/mean"] != 0.0
    assert all(line["critic/grad_norm"] > 0 for line in metrics)
    assert all(math.isfinite(line["actor/kl"]) for line in metrics)


def test_a_group_without_signal_changes_no_weight_and_is_no_nan(tiny_run, read_jsonl):
    tiny_run.config["reward"] = [
        {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}}
    ]
    (tiny_run.folder / "rules.yaml").write_text(
        "score: {min: 0, max: 1}\nrules: [{name: all, regex: '(?s).*', points: 0.5}]\n", "utf-8"
    )
    folder = tiny_run.train("trainer.steps=1")
    line = read_jsonl(folder / "metrics.jsonl")[0]
    assert line["reward/groups_flat"] == 2
    assert line["actor/loss"] == 0 if "actor/loss" in line else True
    start = load_file(tiny_run.config["model"]["path"] + "/model.safetensors")
    end = load_file(folder / "checkpoints/step_000001/policy/model.safetensors")
    assert all(torch.equal(start[name], end[name]) for name in end)
