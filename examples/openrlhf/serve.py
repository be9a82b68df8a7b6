"""The same over HTTP, for OpenRLHF on other machines: ``python examples/openrlhf/serve.py``."""

from __future__ import annotations

import os
from pathlib import Path

import uvicorn

from verl_core.integrations.openrlhf_server import reward_app

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Answer ``POST /get_reward`` until Ctrl-C."""
    model = os.environ.get("MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
    app = reward_app(HERE / "run.yaml", tokenizer=model, label="answer")
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "5000")))


if __name__ == "__main__":
    main()
