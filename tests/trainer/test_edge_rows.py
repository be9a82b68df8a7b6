"""Rows at the edge: prompts that do not fit, responses of one token or of none that can be read,
groups that tell nothing. Each ends before training with the row's place, or has its rule."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from verl_reward_sdk import ConfigError


def start_and_end(tiny_run, folder):
    """The policy's weights before the first step and after the last."""
    (last,) = sorted((folder / "checkpoints").iterdir())[-1:]
    return (
        load_file(f"{tiny_run.config['model']['path']}/model.safetensors"),
        load_file(last / "policy" / "model.safetensors"),
    )


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def finite(line):
    return all(math.isfinite(v) for v in line.values() if isinstance(v, (int, float)))


# -- prompts --------------------------------------------------------------------------------------


def refused(tiny_run, *overrides):
    with pytest.raises(ConfigError) as caught:
        tiny_run.train(*overrides)
    assert not any((tiny_run.folder / "runs").glob("*"))  # a run that never began leaves no folder
    return str(caught.value)


def with_prompt(tiny_run, prompt, name="prompts.jsonl"):
    """Make `prompt` that of the file's third row."""
    path = tiny_run.folder / name
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    rows[2]["prompt"] = prompt
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.mark.parametrize("name", ["prompts.jsonl", "heldout.jsonl"])
def test_a_prompt_longer_than_the_models_context_names_its_file_and_line(tiny_run, name):
    with_prompt(tiny_run, "word " * 200, name)
    said = refused(tiny_run, "data.max_prompt_tokens=4000")
    assert f"'{name}:3': its prompt has 10" in said
    assert "the model's context is 512 tokens and max_new_tokens takes 8" in said


@pytest.mark.parametrize("name", ["prompts.jsonl", "heldout.jsonl"])
def test_a_prompt_that_is_too_long_is_told_before_any_weights_are_read(tiny_run, tmp_path, name):
    spoilt = shutil.copytree(tiny_run.config["model"]["path"], tmp_path / "spoilt")
    save_file({"other": torch.zeros(1)}, spoilt / "model.safetensors")
    tiny_run.config["model"]["path"] = str(spoilt)
    assert "lack" in refused(tiny_run)  # its weights cannot be loaded
    with_prompt(tiny_run, "word " * 200, name)
    assert f"'{name}:3': its prompt has 10" in refused(tiny_run, "data.max_prompt_tokens=4000")


def test_a_prompt_over_max_prompt_tokens_names_its_line_and_the_length_that_is_needed(tiny_run):
    with_prompt(tiny_run, "x" * 100)
    said = refused(tiny_run, "data.max_prompt_tokens=90")
    assert "'prompts.jsonl:3': its prompt has 1" in said
    assert "max_prompt_tokens is 90" in said
    assert "shorten the prompts, or allow 1" in said


@pytest.mark.parametrize("empty", ["", " \n", [], [{"role": "user", "content": ""}]])
def test_an_empty_prompt_names_its_line(tiny_run, empty):
    with_prompt(tiny_run, empty)
    said = refused(tiny_run)
    assert "prompts.jsonl:3" in said
    assert "'prompt' is empty" in said


def test_a_row_without_a_column_that_a_mount_needs_names_its_line_and_the_mount(tiny_run):
    path = tiny_run.folder / "prompts.jsonl"
    path.write_text(path.read_text("utf-8") + '{"prompt": "Why?"}\n', "utf-8")
    said = refused(tiny_run)
    assert "prompts.jsonl:13" in said
    assert "no column 'ground_truth', which 'overlap' reads" in said


# -- responses ------------------------------------------------------------------------------------


@pytest.fixture
def silent_model(tiny_model_dir, tmp_path):
    """A model that ends every response at once: its last layer's bias drowns all else, and its
    head knows one token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from verl_core.trainer.quiet import quiet_transformers

    folder = tmp_path / "silent-model"
    shutil.copytree(tiny_model_dir, folder)
    with quiet_transformers():
        config = LlamaConfig.from_pretrained(folder, tie_word_embeddings=False, mlp_bias=True)
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            model.model.layers[-1].mlp.down_proj.bias.fill_(1e4)
            model.lm_head.weight.zero_()
            model.lm_head.weight[config.eos_token_id] = 4.0
        model.save_pretrained(folder)
    return folder


PPO = {
    "rollout": ["actor", "ref_model"],
    "reward": ["style", "overlap", "guard"],
    "advantage": ["gae"],
    "update": ["ppo"],
}


@pytest.mark.parametrize("dataflow", [None, PPO])
def test_empty_responses_are_scored_as_they_are_and_never_become_nan(
    tiny_run, silent_model, read_jsonl, dataflow
):
    tiny_run.config["model"]["path"] = str(silent_model)
    tiny_run.config["dataflow"] = dataflow
    folder = tiny_run.train("trainer.steps=2")
    for line in read_jsonl(folder / "metrics.jsonl"):
        assert finite(line)
        assert line["response/length_mean"] == 1.0
        assert line["response/truncated"] == 0.0
        assert line["reward/masked"] == 0.0
    rows = read_jsonl(folder / "eval" / "after.jsonl")
    assert {row["response"] for row in rows} == {""}
    assert {row["tokens"] for row in rows} == {1}
    assert all(row["fused"] is not None for row in rows)


def test_responses_of_one_token_stand_beside_longer_ones(tiny_run, tiny_model_dir, read_jsonl):
    """Half of all tokens end a response, so that about half of the responses have one token."""
    model = tiny_run.folder / "model"
    shutil.copytree(tiny_model_dir, model)
    settings = json.loads((model / "generation_config.json").read_text("utf-8"))
    settings["eos_token_id"] = list(range(0, 258, 2))
    (model / "generation_config.json").write_text(json.dumps(settings), "utf-8")
    tiny_run.config["model"]["path"] = str(model)
    tiny_run.config["rollout"]["n"] = 8
    folder = tiny_run.train(
        "trainer.steps=2", "algorithm.kl_coef=0.1", "tracking.samples_per_step=16"
    )
    for line in read_jsonl(folder / "metrics.jsonl"):
        assert finite(line)
        assert 1.0 < line["response/length_mean"] < 8.0
        assert line["actor/grad_norm"] > 0
    assert not same(*start_and_end(tiny_run, folder))


# -- groups ---------------------------------------------------------------------------------------


@pytest.fixture
def flat_run(tiny_run):
    """A run in which every response scores the same."""
    tiny_run.config["reward"] = tiny_run.config["reward"][:1]
    rules = "score: {min: 0, max: 1}\nrules: [{name: all, regex: '(?s).*', points: 0.5}]\n"
    (tiny_run.folder / "rules.yaml").write_text(rules, "utf-8")
    return tiny_run


@pytest.mark.parametrize("norm", ["true", "false"])
def test_flat_groups_are_dropped_from_an_update_without_kl_and_entropy(flat_run, read_jsonl, norm):
    folder = flat_run.train("trainer.steps=2", f"algorithm.norm_adv_by_std={norm}")
    for line in read_jsonl(folder / "metrics.jsonl"):
        assert finite(line)
        assert line["reward/groups_flat"] == 2
        assert not {"actor/loss", "actor/grad_norm", "perf/update_tokens_per_s"} & line.keys()
        assert line["actor/trained_tokens"] == 0
    assert same(*start_and_end(flat_run, folder))


def test_flat_groups_stay_in_the_update_where_the_loss_has_an_entropy_term(flat_run, read_jsonl):
    folder = flat_run.train("trainer.steps=1", "algorithm.entropy_coef=0.1")
    (line,) = read_jsonl(folder / "metrics.jsonl")
    assert finite(line)
    assert line["actor/grad_norm"] > 0
    assert line["actor/trained_tokens"] > 0
    assert line["actor/loss"] == pytest.approx(-0.1 * line["actor/entropy"], rel=1e-4)
    assert not same(*start_and_end(flat_run, folder))


def test_flat_groups_stay_in_the_update_where_the_loss_has_a_kl_term(flat_run, read_jsonl):
    """The entropy term moves the policy off the reference in step 1; in step 2 the KL is there."""
    settings = ("trainer.steps=2", "algorithm.entropy_coef=0.1", "algorithm.kl_coef=0.5")
    folder = flat_run.train(*settings)
    first, second = read_jsonl(folder / "metrics.jsonl")
    assert first["actor/kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["actor/kl"] > 1e-6
    expected = 0.5 * second["actor/kl"] - 0.1 * second["actor/entropy"]
    assert second["actor/loss"] == pytest.approx(expected, rel=1e-4)


def test_kl_in_the_reward_tells_the_rows_of_a_flat_group_apart(flat_run, read_jsonl):
    """The mounts agree on all rows, and yet the fused reward less KL differs once it is not 0."""
    settings = ("algorithm.kl_coef=0.5", "algorithm.kl_in=reward", "algorithm.kl_estimator=k1")
    folder = flat_run.train("trainer.steps=2", "algorithm.entropy_coef=0.1", *settings)
    first, second = read_jsonl(folder / "metrics.jsonl")
    assert finite(second)
    assert first["reward/groups_flat"] == 2
    assert second["reward/groups_flat"] == 0
