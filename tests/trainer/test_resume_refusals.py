"""What a run that goes on must share with what it was, and what may have changed since."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import yaml

from verl_core.trainer import checkpoint
from verl_core.trainer.model_source import identity
from verl_core.trainer.quiet import quiet_transformers
from verl_reward_sdk import ConfigError

GAE = {
    "rollout": ["actor"],
    "reward": ["style", "overlap"],
    "safety": ["guard"],
    "advantage": ["gae"],
    "update": ["ppo"],
}


@pytest.fixture
def trained(tiny_run):
    """The folder of a run of one step."""
    tiny_run.config["trainer"] |= {"steps": 1, "eval_before": False, "eval_after": False}
    folder = tiny_run.train()
    tiny_run.config["trainer"]["steps"] = 2
    return folder


@pytest.fixture
def copied(tiny_run, tiny_model_dir):
    """A copy of the model, in another folder; the run's config names it."""
    folder = tiny_run.folder / "copied"
    shutil.copytree(tiny_model_dir, folder)
    tiny_run.config["model"]["path"] = str(folder)
    return folder


def permute_tokens(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    names = [name for name in vocabulary if not name.startswith("<|")]
    ids = [vocabulary[name] for name in names]
    vocabulary.update(zip(names, ids[7:] + ids[:7], strict=True))
    path.write_text(json.dumps(content), "utf-8")


def other_weights(folder):
    """As many bytes in files of the same names."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    with quiet_transformers():
        LlamaForCausalLM(LlamaConfig.from_pretrained(folder)).save_pretrained(folder)


def other_context(folder):
    path = folder / "config.json"
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, "max_position_embeddings": 256}), "utf-8")


@pytest.mark.parametrize(
    ("change", "part"),
    [(permute_tokens, "tokenizer"), (other_weights, "weights"), (other_context, "config.json")],
)
def test_another_model_is_refused_with_what_differs_and_the_way_out(
    tiny_run, tiny_model_dir, trained, copied, change, part
):
    change(copied)
    for command in (["--resume"], ["--check", "--resume"]):
        result = tiny_run.run(*command)
        assert result.returncode == 2, result.stdout
        said = " ".join(result.stderr.split())
        assert "run.yaml:" in said
        assert f"model.path: the run was trained from {tiny_model_dir}" in said
        assert f"{copied.name} has another {part}" in said  # its path from here
        assert f"set model.path to {tiny_model_dir} again" in said
        assert "without --resume" in said
        assert "Traceback" not in said
    assert [one.step for one in checkpoint.checkpoints(trained)] == [1]


def test_the_same_path_with_another_content_says_that_it_has_changed(tiny_run, copied):
    folder = tiny_run.train("trainer.steps=1")
    permute_tokens(copied)
    with pytest.raises(ConfigError, match="has changed since the run was trained from it"):
        tiny_run.train("trainer.steps=2", resume=folder)


def test_a_model_that_only_moved_goes_on(tiny_run, trained, copied):
    # Another version of the library that wrote it makes it no other model.
    path = copied / "config.json"
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, "transformers_version": "0.1"}, indent=7), "utf-8")
    tiny_run.train(resume=trained)
    assert checkpoint.latest(trained).info()["model"]["path"] == str(copied)


def test_a_checkpoint_from_before_models_were_noted_goes_on_with_any(tiny_run, trained, copied):
    facts = checkpoint.latest(trained).path / "trainer.json"
    facts.write_text(json.dumps({"run_id": "r", "autocast": "none", "step": 1}), "utf-8")
    other_context(copied)
    tiny_run.train(resume=trained)
    assert checkpoint.latest(trained).step == 2


def test_an_identity_reads_little_of_large_weights_and_sees_a_change_anywhere(tmp_path):
    (tmp_path / "config.json").write_text("{}", "utf-8")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(40 << 20))
    before = identity(tmp_path, "m")
    assert identity(tmp_path, "m") == before
    for share in (0.0, 0.4, 0.9):  # a twentieth of it is another
        data = bytearray(40 << 20)
        start = int(share * len(data))
        data[start : start + (2 << 20)] = b"\1" * (2 << 20)
        weights.write_bytes(data)
        assert identity(tmp_path, "m")["weights"] != before["weights"]


def test_gae_on_a_run_without_a_critic_is_refused_by_check_too(tiny_run, trained):
    tiny_run.config["dataflow"] = GAE
    for command in (["--resume"], ["--check", "--resume"]):
        result = tiny_run.run(*command)
        assert result.returncode == 2, result.stdout
        said = " ".join(result.stderr.split())
        line = 1 + yaml.safe_dump(tiny_run.config, sort_keys=False).splitlines().index(
            "  advantage:"
        )
        assert f"run.yaml:{line}:" in said
        assert "dataflow.advantage: gae needs a critic" in said
        assert "step_000001 holds none" in said
        assert "start a new run without --resume" in said


def test_a_critic_of_another_shape_is_refused_and_its_weights_may_be_any(tiny_run, copied):
    tiny_run.config["dataflow"] = GAE
    tiny_run.config["model"] = {"path": tiny_run.config["model"]["path"]}
    folder = tiny_run.train("trainer.steps=1")
    critic = tiny_run.folder / "critic"
    shutil.copytree(copied, critic)
    tiny_run.config["model"]["critic"] = str(critic)
    other_weights(critic)
    tiny_run.train("trainer.steps=2", resume=folder)
    other_context(critic)
    with pytest.raises(ConfigError, match=r"model\.critic: .*has (changed|another).*config\.json"):
        tiny_run.train("trainer.steps=3", resume=folder)


def test_a_changed_precision_holds_and_is_told_and_auto_keeps_what_was(tiny_run, trained, capsys):
    tiny_run.train("optim.autocast=auto", resume=trained)
    assert "autocast" not in capsys.readouterr().out
    assert checkpoint.latest(trained).info()["autocast"] == "none"
    tiny_run.train("optim.autocast=bfloat16", "trainer.steps=3", resume=trained)
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: optim.autocast is bfloat16 now, and was none: from step 3 on" in said
    assert checkpoint.latest(trained).info()["autocast"] == "bfloat16"


def test_changed_settings_of_the_optimiser_hold(tiny_run, trained):
    tiny_run.train("optim.weight_decay=0.25", "optim.betas=[0.5, 0.6]", resume=trained)
    [group] = checkpoint.latest(trained).load("optimizer")["param_groups"]
    assert (group["weight_decay"], tuple(group["betas"])) == (0.25, (0.5, 0.6))
