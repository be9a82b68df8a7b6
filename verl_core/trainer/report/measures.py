"""What is measured on the held-out rows, before and after: rewards, gates, and the text itself.

A row counts where its fused reward is there. Rows without one (blocked by a gate that failed, or
masked) are counted apart and are in no mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from verl_core.trainer.report.statistics import (
    Estimate,
    Paired,
    Scale,
    by_prompt,
    estimate,
    paired,
    repetition,
    similarity,
)

Row = Mapping[str, Any]
Kind = Literal["fused", "mount", "gate", "text"]
Unit = Literal["score", "share", "tokens"]

SPOKE = frozenset({"penalty", "veto", "skip"})
"""Severities with which a gate stands over the sum."""


@dataclass(frozen=True)
class Measure:
    """One figure of the held-out prompts.

    Args:
        name: its key in report.json.
        label: what the page calls it.
        kind: fused reward, a mount's raw score, a gate's rate, or a measure that no mount uses.
        unit: `score` as the mount gives it, `share` of rows in [0, 1], or `tokens`.
        better: the direction that is wanted, None where neither is.
        before, after: each side's estimate; over the paired prompts where both are there.
        pair: the paired comparison, None where a side is missing.
        reference: the same figure of the reference answers, where it has one.
    """

    name: str
    label: str
    kind: Kind
    unit: Unit
    better: Literal["up", "down"] | None
    before: Estimate | None
    after: Estimate | None
    pair: Paired | None
    reference: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "label": self.label,
            "kind": self.kind,
            "unit": self.unit,
            "better": self.better,
            "prompts": self.pair.diff.n if self.pair else None,
            "before": _estimate_dict(self.before),
            "after": _estimate_dict(self.after),
            "diff": _estimate_dict(self.pair.diff) if self.pair else None,
            "z": self.pair.z if self.pair else None,
            "reference": self.reference,
        }


@dataclass(frozen=True)
class Contribution:
    """What one mount (or gate) adds to the fused reward, before and after."""

    mount: str
    role: str
    pair: Paired

    def as_dict(self) -> dict[str, Any]:
        return {
            "mount": self.mount,
            "role": self.role,
            "before": self.pair.before.mean,
            "after": self.pair.after.mean,
            "diff": _estimate_dict(self.pair.diff),
        }


def scored(rows: Iterable[Row]) -> list[Row]:
    """The rows that have a fused reward."""
    return [row for row in rows if row.get("fused") is not None]


def mounts_of(rows: Iterable[Row]) -> dict[str, str]:
    """name -> role of every mount that `rows` explain, in config order."""
    found: dict[str, str] = {}
    for row in rows:
        for name, part in _parts(row).items():
            found.setdefault(name, str(part.get("role", "reward")))
    return found


def references_of(row: Row) -> list[str]:
    """The row's reference answers: none, one or many."""
    found = row.get("reference")
    if isinstance(found, str):
        return [found]
    return [str(item) for item in found] if isinstance(found, Sequence) else []


def measure_all(before: Sequence[Row] | None, after: Sequence[Row] | None) -> list[Measure]:
    """Every measure that the rows allow. A missing side (None) leaves its half empty."""
    sides = (scored(before or ()), scored(after or ()))
    roles = mounts_of([*sides[0], *sides[1]])
    gate_names = [name for name, role in roles.items() if role == "gate"]
    found = [_measure("fused", "fused reward", "fused", "score", "up", sides, _fused)]
    for name, role in roles.items():
        if role != "gate":
            found.append(_measure(name, name, "mount", "score", "up", sides, _raw(name)))
    if gate_names:
        label = gate_names[0] if len(gate_names) == 1 else "any gate"
        found.append(_measure("gate", f"{label} spoke", "gate", "share", "down", sides, _gated))
    if len(gate_names) > 1:
        found += [
            _measure(f"gate:{n}", f"{n} spoke", "gate", "share", "down", sides, _spoke(n))
            for n in gate_names
        ]
    found += _text_measures(sides)
    return [measure for measure in found if measure.before or measure.after]


def contributions(before: Sequence[Row], after: Sequence[Row]) -> list[Contribution]:
    """How the rise of the fused reward is made up; empty where contributions do not add up.

    Under an additive policy the mounts' contributions sum to each row's fused reward. What they
    leave over, if anything, is listed as ``rest``, so that the parts always make the whole.
    """
    sides = (scored(before), scored(after))
    everything = [*sides[0], *sides[1]]
    if not all(row.get("explain", {}).get("additive", False) for row in everything):
        return []
    parts = []
    for name, role in mounts_of(everything).items():
        if (pair := _pair(sides, _contribution(name))) is not None:
            parts.append(Contribution(name, role, pair))
    rest = _pair(sides, _rest)
    if rest is not None and max(abs(rest.before.mean), abs(rest.after.mean)) > 1e-9:
        parts.append(Contribution("rest", "rest", rest))
    return parts


def weights_of(rows: Iterable[Row]) -> dict[str, float]:
    """name -> the weight under which `rows` were scored; evaluation's weights never change."""
    found: dict[str, float] = {}
    for row in rows:
        for name, part in _parts(row).items():
            if part.get("weight") is not None:
                found.setdefault(name, float(part["weight"]))
    return found


def _text_measures(sides: tuple[list[Row], list[Row]]) -> list[Measure]:
    """Repetition, similarity, length and truncation: what training for reward could ruin."""
    lengths = [row for side in sides for row in side if row.get("reference_tokens") is not None]
    reference = by_prompt(
        [_prompt(row) for row in lengths], _column(lengths, lambda r: r["reference_tokens"])
    )
    mean = float(np.mean(list(reference.values()))) if reference else None
    return [
        _measure(
            "repetition",
            "repeated word pairs",
            "text",
            "share",
            "down",
            sides,
            _repetition,
            scale="fraction",
        ),
        _measure(
            "similarity",
            "likeness to reference",
            "text",
            "share",
            "up",
            sides,
            _similarity,
            scale="fraction",
        ),
        _measure("length", "answer length", "text", "tokens", None, sides, _tokens, mean),
        _measure("truncated", "answers cut off", "text", "share", "down", sides, _truncated),
    ]


def _measure(
    name: str,
    label: str,
    kind: Kind,
    unit: Unit,
    better: Literal["up", "down"] | None,
    sides: tuple[list[Row], list[Row]],
    figure: Callable[[Row], float | None],
    reference: float | None = None,
    *,
    scale: Scale | None = None,
) -> Measure:
    scale = scale or ("share" if unit == "share" else "mean")
    pair = _pair(sides, figure, scale)
    if pair is not None:
        before, after = pair.before, pair.after
        return Measure(name, label, kind, unit, better, before, after, pair, reference)
    alone = [_by_prompt(side, figure) for side in sides]
    old, new = (estimate(np.array(list(side.values())), scale) if side else None for side in alone)
    return Measure(name, label, kind, unit, better, old, new, None, reference)


def _pair(
    sides: tuple[list[Row], list[Row]],
    figure: Callable[[Row], float | None],
    scale: Scale = "mean",
) -> Paired | None:
    return paired(_by_prompt(sides[0], figure), _by_prompt(sides[1], figure), scale)


def _by_prompt(rows: list[Row], figure: Callable[[Row], float | None]) -> dict[str, float]:
    return by_prompt([_prompt(row) for row in rows], _column(rows, figure))


def _column(rows: Sequence[Row], figure: Callable[[Row], float | None]) -> Any:
    values = (figure(row) for row in rows)
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _prompt(row: Row) -> str:
    return str(row["prompt_id"] if "prompt_id" in row else row["sample_id"])


def _parts(row: Row) -> Mapping[str, Mapping[str, Any]]:
    found = row.get("explain", {}).get("mounts", {})
    return found if isinstance(found, Mapping) else {}


def _fused(row: Row) -> float | None:
    return row["fused"]  # type: ignore[no-any-return]


def _raw(mount: str) -> Callable[[Row], float | None]:
    def figure(row: Row) -> float | None:
        part = _parts(row).get(mount, {})
        return part.get("raw") if part.get("status", "ok") == "ok" else None

    return figure


def _contribution(mount: str) -> Callable[[Row], float | None]:
    return lambda row: _parts(row).get(mount, {}).get("contribution") or 0.0


def _rest(row: Row) -> float | None:
    added = math.fsum(part.get("contribution") or 0.0 for part in _parts(row).values())
    return float(row["fused"]) - added


def _gated(row: Row) -> float | None:
    return float(row.get("explain", {}).get("gate") in SPOKE)


def _spoke(gate: str) -> Callable[[Row], float | None]:
    return lambda row: float(_parts(row).get(gate, {}).get("severity") in SPOKE)


def _repetition(row: Row) -> float | None:
    return repetition(row.get("response", ""))


def _similarity(row: Row) -> float | None:
    return similarity(row.get("response", ""), references_of(row))


def _tokens(row: Row) -> float | None:
    return row.get("tokens")


def _truncated(row: Row) -> float | None:
    reason = row.get("finish_reason")
    return None if reason is None else float(reason == "length")


def _estimate_dict(value: Estimate | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"mean": value.mean, "se": value.se, "low": value.low, "high": value.high}
