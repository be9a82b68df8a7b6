"""The fused value of one sample, spelled out as the sum that it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from verl_core.control.run.query import mapping

_CLOSE = 1e-6


def spelled_sum(record: Mapping[str, Any]) -> dict[str, Any]:
    """How a sample's mounts make its fused value.

    Args:
        record: a line of ``samples.jsonl``: its ``explain`` is that of `RewardTable.explain`.

    Returns:
        ``{terms: [{mount, role, text, value}], total, fused, holds, note}``: `text` says how the
        term's `value` came about; `total` is the sum of the values; `holds` whether it is the
        fused value, None where there is none; `note` what else must be known, in words.
    """
    explain = mapping(record.get("explain"))
    mounts = {name: mapping(part) for name, part in mapping(explain.get("mounts")).items()}
    additive = explain.get("additive") is not False
    terms: list[dict[str, Any]] = []
    for name, part in mounts.items():
        value = _number(part.get("contribution"))
        if value is None or (part.get("role") == "gate" and value == 0.0):
            continue
        text = _of_gate(part) if part.get("role") == "gate" else _of_reward(part, value, additive)
        terms.append({"mount": name, "role": part.get("role"), "text": text, "value": value})
    fused = _number(explain.get("fused"))
    if fused is None:
        return _answer([], None, None, None, _nothing(explain))
    total = math.fsum(term["value"] for term in terms)
    holds = abs(total - fused) <= _CLOSE * max(1.0, abs(fused)) if additive else None
    return _answer(terms, total if additive else None, fused, holds, _note(explain, additive))


def _of_reward(part: Mapping[str, Any], value: float, additive: bool) -> str:
    taken, raw = _number(part.get("normalised")), _number(part.get("raw"))
    weight = _number(part.get("weight"))
    if part.get("status") == "abstained":
        begin = "no score of its own: the neutral place "
    elif part.get("status") == "failed":
        begin = "it failed: the default "
    elif part.get("status") == "not_applicable":
        return "it was not asked"
    elif taken is not None and raw is not None and abs(taken - raw) > _CLOSE * max(1.0, abs(raw)):
        begin = f"score {_shown(raw)}, taken as "
    else:
        begin = "score "
    if taken is None or weight is None:
        return f"{begin}unknown"
    if additive and abs(taken * weight - value) > _CLOSE * max(1.0, abs(value)):
        # A policy that adds, yet not score times weight alone: the mean, or a multiplier.
        return f"{begin}{_shown(taken)}, weight {_shown(weight)}, as the policy counts them"
    sign = " × weight " if additive else ", weight "
    return f"{begin}{_shown(taken)}{sign}{_shown(weight)}"


def _of_gate(part: Mapping[str, Any]) -> str:
    match part.get("severity"):
        case "penalty":
            return "its penalty is added"
        case "veto":
            return "its veto: the penalty stands where it is lower than the sum"
        case "skip":
            return "its veto, and the row is skipped: the penalty stands where it is lower"
    return "what it takes"


def _nothing(explain: Mapping[str, Any]) -> str:
    why = explain.get("reason") or explain.get("masked") or "no reason was kept"
    if explain.get("blocked"):
        return f"No reward: the row is blocked ({why})."
    return f"No reward: the row is masked and trains nothing ({why})."


def _note(explain: Mapping[str, Any], additive: bool) -> str:
    if additive:
        return ""
    return (
        "This fusion policy does not add: a mount's figure is the fused value minus what it would"
        " be without that mount, and they need not sum up."
    )


def _answer(
    terms: list[dict[str, Any]],
    total: float | None,
    fused: float | None,
    holds: bool | None,
    note: str,
) -> dict[str, Any]:
    return {"terms": terms, "total": total, "fused": fused, "holds": holds, "note": note}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _shown(value: float) -> str:
    """``0.25``: four figures after the point, without zeros at the end."""
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return text.replace("-", "−") if text not in ("-0", "") else "0"
