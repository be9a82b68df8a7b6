"""The same over HTTP, for OpenRLHF on other machines: ``python examples/openrlhf/serve.py``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import uvicorn

from verl_core.integrations.openrlhf_server import reward_app
from verl_core.trainer.model_source import resolve_model
from verl_reward_sdk import ConfigError

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Answer ``POST /get_reward`` until Ctrl-C."""
    model = os.environ.get("MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
    try:
        folder = resolve_model(model, say=print).path
        app = reward_app(HERE / "run.yaml", tokenizer=folder, label="answer")
    except ConfigError as error:
        sys.exit(f"error: {error}")
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "5000")))


if __name__ == "__main__":
    main()
