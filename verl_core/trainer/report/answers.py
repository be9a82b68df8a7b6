"""Which answers the report shows: the same prompt before and after, chosen by a rule, not by hand.

Shown are the prompts whose fused reward rose most, those in the middle, and the one that fell most,
so that the page is no advertisement; and one on which a gate spoke before training, if any did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_core.trainer.report.measures import SPOKE, Row, references_of, scored

TOP, MIDDLE, BOTTOM = 2, 2, 1
RECENT = 3


@dataclass(frozen=True)
class Answer:
    """One answer with its score explained: ``parts`` is one mapping a mount, in config order.
    They make the reward up where it is `additive`."""

    when: str
    response: str
    fused: float | None
    gate: str
    tokens: int | None
    cut: bool
    parts: tuple[Mapping[str, Any], ...]
    additive: bool = True


@dataclass(frozen=True)
class Example:
    """One prompt with its answers, and why it is shown."""

    why: str
    prompt: str
    references: tuple[str, ...]
    answers: tuple[Answer, ...]
    change: float | None


def compare(before: Sequence[Row], after: Sequence[Row]) -> list[Example]:
    """Prompts answered on both sides, the first answer of each, best change first in its class."""
    old, new = _first_rows(before), _first_rows(after)
    changes = sorted(
        ((new[p]["fused"] - old[p]["fused"], p) for p in old if p in new),
        key=lambda item: (-item[0], item[1]),
    )
    chosen: dict[str, str] = {}
    prompts = [prompt for _, prompt in changes]
    for prompt in prompts[:TOP]:
        chosen[prompt] = "one of the largest rises"
    for prompt in prompts:
        if old[prompt].get("explain", {}).get("gate") in SPOKE and prompt not in chosen:
            chosen[prompt] = "a gate spoke before training"
            break
    start = max(len(prompts) // 2 - MIDDLE // 2, 0)
    for prompt in prompts[start : start + MIDDLE]:
        chosen.setdefault(prompt, "in the middle of all changes")
    for change, prompt in changes[-BOTTOM:]:
        chosen.setdefault(prompt, "the largest fall" if change < 0 else "the smallest change")
    by_prompt = {prompt: change for change, prompt in changes}
    return [
        Example(
            why=why,
            prompt=_text(old[prompt].get("prompt")),
            references=tuple(references_of(old[prompt])),
            answers=(_answer("before", old[prompt]), _answer("after", new[prompt])),
            change=by_prompt[prompt],
        )
        for prompt, why in chosen.items()
    ]


def from_training(samples: Sequence[Row]) -> list[Example]:
    """Answers of the first and the last logged step, for a run without evaluations."""
    if not samples:
        return []
    steps = sorted({int(row["step"]) for row in samples})
    shown = [row for row in samples if row["step"] == steps[0]][:RECENT]
    if len(steps) > 1:
        shown += [row for row in samples if row["step"] == steps[-1]][:RECENT]
    return [
        Example(
            why=f"training, step {row['step']}",
            prompt=_text(row.get("prompt")),
            references=tuple(references_of(row)),
            answers=(_answer(f"step {row['step']}", row),),
            change=None,
        )
        for row in shown
    ]


def _first_rows(rows: Sequence[Row]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in scored(rows):
        found.setdefault(str(row.get("prompt_id", row.get("sample_id"))), row)
    return found


def _answer(when: str, row: Row) -> Answer:
    explain = row.get("explain", {})
    parts = tuple({"mount": name, **part} for name, part in explain.get("mounts", {}).items())
    return Answer(
        when=when,
        response=_text(row.get("response")),
        fused=row.get("fused"),
        gate=str(explain.get("gate") or "none"),
        tokens=row.get("tokens"),
        cut=row.get("finish_reason") == "length",
        parts=parts,
        additive=bool(explain.get("additive", True)),
    )


def _text(value: Any) -> str:
    """A prompt as text: a string as it is, messages one a paragraph."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return "\n\n".join(_turn(turn) for turn in value)
    return "" if value is None else str(value)


def _turn(turn: Any) -> str:
    if not isinstance(turn, Mapping):
        return str(turn)
    return f"{turn.get('role', 'message')}: {_text(turn.get('content'))}"
