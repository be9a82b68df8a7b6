"""``verl-reward talk``: talk to a model that a run has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_core.trainer.talk import LIMIT, NEW_TOKENS, talk


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The model's folder, such as runs/NAME/model.")
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Answer the prompts of this JSONL file instead."),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="Answer the file's first N prompts; 0: all.")
    ] = LIMIT,
    prompt_key: Annotated[
        str, typer.Option(metavar="KEY", help="The file's column of the prompts.")
    ] = "prompt",
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="The longest answer, in tokens.")
    ] = NEW_TOKENS,
    temperature: Annotated[
        float, typer.Option(metavar="T", min=0.0, help="0 takes the likeliest token each time.")
    ] = 0.0,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Ask each line under this system line, facts and all."),
    ] = None,
) -> None:
    """Talk to a trained model: each line is a question, until Ctrl-D.

    A line is a bare question, without a system line or facts, unless --system gives them; with
    --prompts, the model answers prompts as it was trained on them.

    Example: verl-reward talk runs/NAME/model --prompts data/heldout.jsonl --limit 20
    """
    try:
        talk(
            model,
            prompts=prompts,
            limit=limit,
            prompt_key=prompt_key,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            system=system,
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
