"""The file for OpenRLHF's ``--reward.remote_url``: it looks for `reward_func` in it."""

from __future__ import annotations

import os
from pathlib import Path

from verl_core.integrations.openrlhf import reward_function

HERE = Path(__file__).resolve().parent

reward_func = reward_function(
    HERE / "run.yaml",
    tokenizer=os.environ.get("MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    label="answer",  # what --data.label_key names, and accuracy compares with
    weights=os.environ.get("WEIGHTS"),  # a weights.db whose weights may be changed meanwhile
)
