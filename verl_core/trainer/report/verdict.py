"""The verdict: did training do what it was meant to do, and did it ruin nothing beside it?

The built-in checks are the same for every run: their bounds are the constants below, which nobody
sets. Each is reported whether it is met or not. Checks that a run cannot have (no gate, no
reference answers) are left out; all of them are, where `left_out` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_core.trainer.report.measures import Measure
from verl_core.trainer.report.statistics import FEW, Paired
from verl_core.trainer.report.story import signed

FUSED_ERRORS = 5.0
"""The fused reward must rise by more than so many standard errors of the paired difference."""

GATE_START = 0.05
"""Share of answers on which the gate must speak before training: else it had nothing to teach."""

GATE_ERRORS = 2.0
"""The gate's rate must fall by more than so many standard errors."""

SIDE_ERRORS = 1.0
"""Repetition may rise, and similarity fall, by no more than so many standard errors."""

LENGTH_TOLERANCE = 0.2
"""A mean length within this share of the references' is right, wherever it was before."""

WHAT = (
    "Built-in checks ask the same of every run: did the reward rise, and was nothing else ruined?"
)
"""What they are, for those who read them and have set none."""


_RISES = "fused reward rises"


def verdict(measures: Sequence[Measure], config: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The block ``verdict`` of report.json; empty where there is no before and after.

    Args:
        config: the run's, by which a check may have to be left out: `standing_still` says why.
    """
    known = {measure.name: measure for measure in measures}
    pairs = {name: measure.pair for name, measure in known.items() if measure.pair is not None}
    block: dict[str, Any] = {
        name: _figures(pairs[name])
        for name in ("fused", "gate", "repetition", "similarity", "length")
        if name in pairs
    }
    checks: list[dict[str, Any]] = []
    without: list[dict[str, str]] = []
    if "fused" in pairs and (reason := standing_still(config or {})):
        without.append({"name": _RISES, "reason": reason})
    elif fused := pairs.get("fused"):
        met = fused.above(FUSED_ERRORS)
        checks.append(_check(_RISES, f"by more than {FUSED_ERRORS:g} SE", fused, met))
    if gate := pairs.get("gate"):
        checks += _gate_checks(gate)
    if repetition := pairs.get("repetition"):
        target = f"no higher by more than {SIDE_ERRORS:g} SE"
        met = not repetition.above(SIDE_ERRORS)
        checks.append(_check("repetition does not rise", target, repetition, met))
    if similarity := pairs.get("similarity"):
        target = f"no lower by more than {SIDE_ERRORS:g} SE"
        met = not similarity.below(SIDE_ERRORS)
        checks.append(_check("likeness to the references does not fall", target, similarity, met))
    length = known.get("length")
    if length is not None and length.pair is not None and length.reference is not None:
        block["length"]["reference"] = length.reference
        checks.append(_length_check(length.pair, length.reference))
    return {**block, "checks": checks, "without": without} if checks or without else {}


def standing_still(config: Mapping[str, Any]) -> str:
    """Why the mean fused reward of the evaluation cannot rise whatever is learnt, as half a
    sentence; empty where it can.

    Args:
        config: the run's, resolved, as ``config.yaml`` has it.
    """
    own = config.get("eval_reward")
    own = own if isinstance(own, Mapping) else {"reward": own}
    fusion = own.get("fusion") or config.get("fusion") or {}
    if isinstance(fusion, Mapping) and fusion.get("policy") == "lexicographic":
        return (
            "lexicographic ranks the answers to a prompt among themselves, so that their mean"
            " cannot show progress"
        )
    listed = own.get("reward") or config.get("reward") or ()
    mounts = [listed] if isinstance(listed, Mapping) else listed
    counting = [
        mount
        for mount in mounts
        if isinstance(mount, Mapping) and mount.get("role") != "gate" and mount.get("weight") != 0
    ]
    if counting and all(mount.get("normalize", "none") != "none" for mount in counting):
        return (
            "every mount is normalised, so that the mean is near 0 before as after and cannot show"
            " progress: read the mounts' own scores"
        )
    return ""


def left_out(measures: Sequence[Measure], status: str) -> str:
    """Why the checks say nothing about a run, as half a sentence; empty where they do.

    Args:
        status: of the run, as ``state.json`` has it.
    """
    if status == "stopped":
        return "the run was stopped before its end"
    fused = next((m.pair for m in measures if m.name == "fused"), None)
    if fused is not None and fused.diff.n < FEW:
        prompts = f"{fused.diff.n} held-out prompt{'s' if fused.diff.n > 1 else ''}"
        return f"with {prompts} chance is too large, they need {FEW}"
    return ""


def _gate_checks(gate: Paired) -> list[dict[str, Any]]:
    start = gate.before.mean
    enough = {
        "name": "the gate has something to teach",
        "target": f"at least {100 * GATE_START:g} % of answers before training",
        "value": start,
        "found": f"{100 * start:.1f} %",
        "met": start >= GATE_START,
    }
    falls = _check(
        "the gate's rate falls", f"by more than {GATE_ERRORS:g} SE", gate, gate.below(GATE_ERRORS)
    )
    return [enough, falls]


def _length_check(length: Paired, reference: float) -> dict[str, Any]:
    before, after = length.before.mean, length.after.mean
    nearer = abs(after - reference) <= abs(before - reference)
    near = abs(after - reference) <= LENGTH_TOLERANCE * reference
    return {
        "name": "length keeps to the references",
        "target": f"no farther from {reference:.1f} tokens than before, or within "
        f"{100 * LENGTH_TOLERANCE:g} % of it",
        "value": after,
        "found": f"{before:.1f} -> {after:.1f} tokens",
        "met": nearer or near,
    }


def _check(name: str, target: str, pair: Paired, met: bool) -> dict[str, Any]:
    found = f"{pair.before.mean:.3f} -> {pair.after.mean:.3f}"
    if pair.z is not None:
        found += f", {signed(pair.z, 1).replace('−', '-')} SE"
    return {"name": name, "target": target, "value": pair.z, "found": found, "met": met}


def _figures(pair: Paired) -> dict[str, Any]:
    return {
        "before": pair.before.mean,
        "after": pair.after.mean,
        "diff": pair.diff.mean,
        "se": pair.diff.se,
        "z": pair.z,
    }
