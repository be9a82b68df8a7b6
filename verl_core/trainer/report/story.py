"""The report in sentences: what happened and why, drawn from its own figures and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_core.trainer.report.failures import failure_sentences
from verl_core.trainer.weight_text import change_texts, setting_text

Report = Mapping[str, Any]


def story(report: Report) -> list[str]:
    """The most important first; each holds only where its figures are."""
    sentences = [
        _rise(report),
        earlier(report),
        idle(report),
        _sources(report),
        _gate(report),
        *failure_sentences(report.get("failures", ())),
        *changes(report["revisions"]),
        *_replaced(report.get("replaced", ())),
        _checks(report),
        *without(report),
        _left_out(report),
    ]
    return [sentence for sentence in sentences if sentence]


def signed(value: float | None, digits: int = 3) -> str:
    """``+0.157``, with a true minus sign below zero and no sign at ``0.000``; a dash where there is
    no figure."""
    return "–" if value is None else _plain(f"{value:+.{digits}f}")


def number(value: float | None, digits: int = 3) -> str:
    """``0.157``, with a true minus sign below zero; a dash where there is no figure."""
    return "–" if value is None else _plain(f"{value:.{digits}f}")


def _plain(text: str) -> str:
    """A true minus sign, and no sign before what was rounded to zero."""
    return text.replace("-", "−") if text.strip("+-0.") else text.lstrip("+-")


def percent(share: float | None) -> str:
    return "–" if share is None else f"{number(100 * share, 1)}\u00a0%"


def setting(value: Any) -> str:
    """A weight as a person writes it: a number, or its schedule in words."""
    if isinstance(value, Mapping):
        return setting_text(value)
    return f"{value:.4g}".replace("-", "−") if isinstance(value, (int, float)) else str(value)


def changed(revision: Mapping[str, Any]) -> str:
    """``tone 1 → 0.5, conversion 0.5 → 1``: what a revision changed."""
    return ", ".join(change_texts(revision["before"], revision["after"]))


def _rise(report: Report) -> str:
    head = report["headline"]
    if head["kind"] == "training" and head["first"] == head["last"]:
        return (
            f"The mean fused reward of step {head['first']} is {number(head['after'])}; there is no"
            " other step to compare it with yet."
        )
    if head["kind"] == "training":
        steps = f"steps {head['first']} to {head['last']}"
        count = head["window"]  # steps at either end, whose means are compared
        first, last = f"mean of the first {count} steps", f"of the last {count}"
        if count == 1:
            first, last = f"step {head['first']}", f"step {head['last']}"
        return (
            f"Over {steps} the training batches' mean fused reward went from"
            f" {number(head['before'])} ({first}) to {number(head['after'])} ({last}). Training"
            " batches differ from step to step; only an evaluation on held-out prompts tells how"
            f" much was learnt.{reweighed(head)}"
        )
    if head["kind"] != "held_out" and head.get("missing"):
        return f"No figures: {head['missing']}, which holds those of each step, is missing."
    if head["kind"] != "held_out" and head.get("steps"):
        one = head["steps"] == 1
        steps = "the step that was" if one else f"any of the {head['steps']} steps that were"
        return f"No figures: no row had a fused reward in {steps} made."
    if head["kind"] != "held_out":
        return "No figures yet: the run has not finished a step."
    diff = head["diff"]
    verb = "rose" if diff["mean"] > 0 else "fell" if diff["mean"] < 0 else "stayed"
    text = (
        f"On {head['prompts']} held-out prompts, which it never trained on, the fused reward {verb}"
        f" from {number(head['before'])} to {number(head['after'])} ({signed(diff['mean'])}"
    )
    if diff["low"] is not None:
        text += f"; 95\u00a0% interval {signed(diff['low'])} to {signed(diff['high'])}"
    return f"{text}). {_strength(head['z'])}".strip()


def reweighed(head: Mapping[str, Any]) -> str:
    """A warning behind the headline of a training run whose weights moved; else empty."""
    moved = head.get("reweighed", ())
    if not moved:
        return ""
    named = ", ".join(moved[:4]) + (f" and {len(moved) - 4} more" if len(moved) > 4 else "")
    return (
        f" Nor do the two figures have the same weights ({named}): a change of a weight alone moves"
        " them."
    )


def idle(report: Report) -> str:
    """In how many steps there was nothing to train on, and why; empty where there always was."""
    found = report.get("idle")
    if not found:
        return ""
    return (
        f"There was nothing to train on in {found['steps']} of {found['of_steps']} steps"
        f"{': ' + found['why'] if found['why'] else ''}."
    )


def without(report: Report) -> list[str]:
    """The built-in checks that the run's config rules out, one a sentence."""
    return [
        f"The built-in check “{one['name']}” is left out: {one['reason']}."
        for one in report["verdict"].get("without", ())
    ]


def earlier(report: Report) -> str:
    """What is known of the model as it was when it was last evaluated; empty where that is now."""
    found = report.get("earlier")
    if not found:
        return ""
    text = (
        f"It was last evaluated after step {found['step']}, and the model is at step"
        f" {report['run']['step']} now: after step {found['step']} the fused reward on"
        f" {found['prompts']} held-out prompts was {number(found['after'])}"
    )
    if found["diff"] is not None:
        text += f", before training {number(found['before'])} ({signed(found['diff'])})"
    return f"{text}."


def _strength(z: float | None) -> str:
    if z is None:
        return ""
    errors = f"That is {number(abs(z), 1)} standard errors:"
    if abs(z) > 5:
        return f"{errors} far more than chance explains."
    return f"{errors} {'more than chance explains' if abs(z) > 2 else 'it may be chance'}."


def _sources(report: Report) -> str:
    parts = sorted(report["contributions"], key=lambda part: -abs(part["diff"]["mean"]))
    moved = [part for part in parts if abs(part["diff"]["mean"]) >= 0.0005]
    if not moved:
        return ""
    named = [f"{part['mount']} ({signed(part['diff']['mean'])})" for part in moved[:2]]
    text = f"The largest part of the change comes from {' and '.join(named)}"
    falls = [part for part in moved if part["diff"]["mean"] < 0]
    if falls and report["headline"]["diff"]["mean"] > 0:
        text += f"; {falls[0]['mount']} took {number(abs(falls[0]['diff']['mean']))} away"
    return f"{text}."


def _gate(report: Report) -> str:
    gate = next((m for m in _measures(report) if m["name"] == "gate"), None)
    if gate is None or gate["before"] is None or gate["after"] is None:
        return ""
    names = [mount["name"] for mount in report["mounts"] if mount["role"] == "gate"]
    who = f"The gate {names[0]}" if len(names) == 1 else "Gates"
    return (
        f"{who} spoke on {percent(gate['before']['mean'])} of the answers before training and on"
        f" {percent(gate['after']['mean'])} after."
    )


def changes(revisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The changes that steps were scored under, each against the weights in force before it.

    Several revisions between two steps are one change to the run: that of all of them.
    """
    said: list[str] = []
    waiting: list[Mapping[str, Any]] = []
    before = revisions[0]["after"] if revisions else {}
    for revision in revisions[1:]:
        waiting.append(revision)
        if revision["first_step"] is None:
            continue
        what = changed({"before": before, "after": revision["after"]})
        authors = " and ".join(dict.fromkeys(str(one["author"]) for one in waiting))
        reasons = [f"“{_cut(str(one['reason']), 120)}”" for one in waiting if one["reason"]]
        reason = f" ({', '.join(dict.fromkeys(reasons))})" if reasons else ""
        before, waiting = revision["after"], []
        if what:
            said.append(
                f"From step {revision['first_step']} on, {authors} changed the weights while"
                f" it trained: {what}{reason}."
            )
    if len(said) > 2:
        said[2:] = [f"{len(said) - 2} more changes of the weights are listed below."]
    return said


def _replaced(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Mounts that went on with other files: what came before and after does not compare."""
    said = [
        f"From step {one['step']} on, {one['mount']} scored with another "
        f"{' and '.join(one['files']) or 'version of its code'}: what it gave before and after does"
        " not compare."
        for one in found
    ]
    if len(said) > 2:
        said[2:] = [f"{len(said) - 2} more replaced files are listed below."]
    return said


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _checks(report: Report) -> str:
    checks = report["verdict"].get("checks", [])
    if reason := report["verdict"].get("left_out"):
        return f"The built-in checks are left out: {reason}."
    if not checks:
        return ""
    missed = [check["name"] for check in checks if not check["met"]]
    if not missed:
        return f"All {len(checks)} built-in checks are met."
    verb = "is" if len(missed) == 1 else "are"
    return f"{len(missed)} of {len(checks)} built-in checks {verb} not met: {'; '.join(missed)}."


def _left_out(report: Report) -> str:
    evaluation = report["evaluation"]
    if evaluation is None:
        return ""
    sides = [
        f"{evaluation[side]['blocked']} blocked and {evaluation[side]['unscored']} unscored {side}"
        for side in ("before", "after")
        if evaluation[side] and (evaluation[side]["blocked"] or evaluation[side]["unscored"])
    ]
    return f"Rows without a reward are in no mean: {', '.join(sides)}." if sides else ""


def _measures(report: Report) -> Sequence[Mapping[str, Any]]:
    evaluation = report["evaluation"]
    return evaluation["measures"] if evaluation else ()
