"""Loading models: quietly, wholly, and ready to be padded on the left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from verl_core.trainer.model_source import ModelSource
from verl_core.trainer.models import (
    configured_context,
    context_length,
    dtype_of,
    load_policy,
    load_tokenizer,
)
from verl_reward_sdk import ConfigError


def source(folder: Path) -> ModelSource:
    return ModelSource(folder, "folder", str(folder))


def test_a_policy_is_loaded_in_its_type_and_in_eval_mode(tiny_model_dir: Path) -> None:
    for name in ("float32", "bfloat16"):
        policy = load_policy(source(tiny_model_dir), dtype_of(name), seed=0)
        assert not policy.training
        assert {parameter.dtype for parameter in policy.parameters()} == {dtype_of(name)}
        assert context_length(policy) == 512
    assert configured_context(source(tiny_model_dir)) == 512


def test_loading_says_nothing(tiny_model_dir: Path) -> None:
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from verl_core.trainer.model_source import resolve_model\n"
        "from verl_core.trainer.models import load_policy, load_tokenizer\n"
        "from verl_core.trainer.encoding import encode_prompts\n"
        "source = resolve_model(sys.argv[1])\n"
        "load_policy(source, torch.float32, 0)\n"
        "encode_prompts(load_tokenizer(source), ['hi'], 100)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_model_dir)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_tokenizer_pads_on_the_left_and_without_a_pad_token_with_its_end_token(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("pad_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.padding_side == "left"
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    config.pop("eos_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="neither a pad token nor an end token"):
        load_tokenizer(folder)


def test_weights_that_lack_a_parameter_are_refused_not_made_up(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 1 of the model's parameters.*model\.norm"):
        load_policy(source(folder), torch.float32, seed=0)


@pytest.mark.parametrize("kind", ["vit", "no-such-architecture"])
def test_what_is_no_causal_language_model_is_refused(
    tiny_model_dir: Path, tmp_path: Path, kind: str
) -> None:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = kind
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_policy(source(folder), torch.float32, seed=0)


def test_a_dtype_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bfloat16'"):
        dtype_of("bfloat")


def test_a_config_that_transformers_does_not_know_is_told_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nosuch"}', "utf-8")
    with pytest.raises(ConfigError, match=r"config\.json in .* cannot be used") as caught:
        configured_context(source(tmp_path))
    assert str(tmp_path) in str(caught.value)
