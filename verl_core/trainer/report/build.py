"""From a run's folder to its report: ``report/{index.html, *.png, report.json}``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_core.trainer import jsonl, series
from verl_core.trainer.masked import idle_steps
from verl_core.trainer.report import answers, figures, page, theme
from verl_core.trainer.report.data import RunData, load_run
from verl_core.trainer.report.failures import failures_of
from verl_core.trainer.report.measures import (
    Measure,
    Row,
    contributions,
    measure_all,
    mounts_of,
    weights_of,
)
from verl_core.trainer.report.splits import splits_of
from verl_core.trainer.report.story import story
from verl_core.trainer.report.verdict import left_out, verdict
from verl_core.trainer.written import naming, write_whole

FORMAT = 1

_ENDS = 3
"""Training steps at either end that are averaged where there is no held-out evaluation."""

_TRAINING_KEYS = (
    series.FUSED,
    series.REVISION,
    series.LENGTH,
    series.TRUNCATED,
    series.KL,
    series.LOSS,
    series.ROLLOUT_SPEED,
    series.UPDATE_SPEED,
    series.STEP_SECONDS,
)


def write_report(run_dir: Path) -> Path:
    """Write the report of a run, finished or not, into its folder.

    Args:
        run_dir: the run's folder, as the trainer writes it.

    Returns:
        ``report/index.html``, which needs nothing beside it and no network. Beside it lie the
        figures as PNGs and ``report.json`` with the same numbers.

    Raises:
        VerlRewardError: the folder is no run's, a package that the report needs is missing, or it
            cannot be written, as on a full disk.
    """
    run = load_run(run_dir)
    report = build_report(run)
    drawings = _draw(run, report)
    folder = run_dir / "report"
    svgs = {name: (wide, narrow) for name, (_, wide, narrow) in drawings.items()}
    files = {f"{name}.png": png for name, (png, _, _) in drawings.items()}
    files["report.json"] = jsonl.encode(report)
    files["index.html"] = page.render(report, svgs).encode("utf-8", "xmlcharrefreplace")
    with naming(folder):
        folder.mkdir(exist_ok=True)
    for name, content in files.items():
        write_whole(folder / name, content)
    return folder / "index.html"


def build_report(run: RunData) -> dict[str, Any]:
    """All figures of the report, as ``report.json`` holds them."""
    measures = measure_all(run.before, run.after) if run.before or run.after else []
    parts = contributions(run.before, run.after) if run.before and run.after else []
    shown = (
        answers.compare(run.before, run.after)
        if run.before and run.after
        else answers.from_training(run.samples)
    )
    report: dict[str, Any] = {
        "format": FORMAT,
        "run": _run(run),
        "mounts": _mounts(run),
        "headline": _headline(run, measures),
        "earlier": _earlier(run),
        "evaluation": _evaluation(run, measures) if measures else None,
        "contributions": [part.as_dict() for part in parts],
        "verdict": _verdict(run, measures),
        "splits": splits_of(run),
        "training": _training(run),
        "idle": idle_steps(run.metrics),
        "failures": failures_of(run),
        "revisions": [
            {**change.as_dict(), "first_step": run.first_step(change.revision)}
            for change in run.changes
        ],
        "replaced": run.replaced,
        "examples": [dataclasses.asdict(example) for example in shown],
    }
    report["contributions"].sort(key=lambda part: -part["diff"]["mean"])
    clean: dict[str, Any] = jsonl.plain(report)
    return {**clean, "story": story(clean)}


def _verdict(run: RunData, measures: Sequence[Measure]) -> dict[str, Any]:
    block = verdict(measures, run.config)
    reason = left_out(measures, str(run.state.get("status", ""))) if measures else ""
    return {**block, "checks": [], "without": [], "left_out": reason} if reason else block


def _run(run: RunData) -> dict[str, Any]:
    state, steps = run.state, run.steps
    model = run.config.get("model")
    rollout = run.config.get("rollout")
    return {
        "name": run.name,
        "run_id": state.get("run_id"),
        "status": state.get("status", "unfinished"),
        "model": state.get("model") or (model.get("path") if isinstance(model, Mapping) else None),
        "step": state.get("step", steps[-1] if steps else 0),
        "steps": state.get("steps", steps[-1] if steps else 0),
        "started": state.get("started"),
        "ended": state.get("ended"),
        "train_seconds": state.get("train_seconds"),
        "peak_rss_gb": state.get("peak_rss_gb"),
        "prompts_per_step": rollout.get("prompts_per_step") if isinstance(rollout, dict) else None,
        "answers_per_prompt": rollout.get("n") if isinstance(rollout, dict) else None,
    }


def _mounts(run: RunData) -> list[dict[str, Any]]:
    """Every mount that the config, the metrics or the evaluation name, each with its colour."""
    recipes = {recipe.name: recipe for recipe in run.recipes}
    roles = {name: recipe.role for name, recipe in recipes.items()}
    roles |= {name: "reward" for name in run.mounts if name not in roles}
    roles |= {name: "gate" for name in run.gates if name not in roles}
    for name, role in mounts_of([*(run.before or ()), *(run.after or ())]).items():
        roles.setdefault(name, role)
    frozen = weights_of([*(run.before or ()), *(run.after or ())])
    found = []
    rewards = 0
    for name, role in roles.items():
        recipe = recipes.get(name)
        weights = run.series(series.weight_of(name))
        known = weights[np.isfinite(weights)]
        multipliers = run.series(series.multiplier_of(name))
        added = multipliers[np.isfinite(multipliers)]
        found.append(
            {
                "name": name,
                "role": role,
                "plugin": recipe.plugin if recipe else "",
                "penalty": recipe.penalty if recipe else None,
                "weight": recipe.weight if recipe and role != "gate" else None,
                "eval_weight": frozen.get(name),
                "first_weight": float(known[0]) if len(known) else None,
                "last_weight": float(known[-1]) if len(known) else None,
                "first_multiplier": float(added[0]) if len(added) else None,
                "last_multiplier": float(added[-1]) if len(added) else None,
                "colour": "gate" if role == "gate" else theme.mount_colour(rewards),
            }
        )
        rewards += role != "gate"
    return found


def _headline(run: RunData, measures: Sequence[Measure]) -> dict[str, Any]:
    fused = next((measure for measure in measures if measure.name == "fused"), None)
    if fused is not None and fused.pair is not None:
        figures = fused.as_dict()
        return {
            "kind": "held_out",
            "before": fused.pair.before.mean,
            "after": fused.pair.after.mean,
            "diff": figures["diff"],
            "z": fused.pair.z,
            "prompts": fused.pair.diff.n,
        }
    values = run.series(series.FUSED)
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        gone = run.state.get("step") and not (run.path / "metrics.jsonl").exists()
        missing = {"missing": "metrics.jsonl"} if gone else {}
        made = {"steps": len(run.steps)} if run.steps else {}
        return {"kind": "none", **made, **missing}
    count = max(1, min(_ENDS, len(known) // 2))
    return {
        "kind": "training",
        "before": float(np.mean(values[known[:count]])),
        "after": float(np.mean(values[known[-count:]])),
        "first": run.steps[known[0]],
        "last": run.steps[known[-1]],
        "window": count,
        "reweighed": _reweighed(run, known),
    }


def _reweighed(run: RunData, steps: NDArray[np.int64]) -> list[str]:
    """``tone 1 → 2`` of each weight, ``tone's multiplier 0 → 0.3`` of each multiplier, that is not
    the same in all these steps."""
    texts = []
    for mount in run.mounts:
        for name, key in (
            (mount, series.weight_of(mount)),
            (f"{mount}'s multiplier", series.multiplier_of(mount)),
        ):
            values = run.series(key)[steps]
            values = values[np.isfinite(values)]
            if len(values) and np.any(values != values[0]):
                texts.append(f"{name} {values[0]:.4g} → {values[-1]:.4g}")
    return texts


def _earlier(run: RunData) -> dict[str, Any] | None:
    """The evaluation after training that the model has gone on from; None where there is none."""
    if not run.earlier:
        return None
    fused = next((m for m in measure_all(run.before, run.earlier) if m.name == "fused"), None)
    if fused is None or fused.after is None:
        return None
    return {
        "step": run.earlier[0]["step"],
        "prompts": fused.pair.diff.n if fused.pair else fused.after.n,
        "before": fused.before.mean if fused.before else None,
        "after": fused.after.mean,
        "diff": fused.pair.diff.mean if fused.pair else None,
    }


def _evaluation(run: RunData, measures: Sequence[Measure]) -> dict[str, Any]:
    return {
        "confidence": 0.95,
        "before": _counts(run.before),
        "after": _counts(run.after),
        "measures": [measure.as_dict() for measure in measures],
    }


def _counts(rows: Sequence[Row] | None) -> dict[str, int] | None:
    if rows is None:
        return None
    blocked = sum(bool(row.get("explain", {}).get("blocked")) for row in rows)
    without = sum(row.get("fused") is None for row in rows)
    prompts = {str(row.get("prompt_id", row.get("sample_id"))) for row in rows}
    return {
        "rows": len(rows),
        "prompts": len(prompts),
        "blocked": blocked,
        "unscored": max(without - blocked, 0),
    }


def _training(run: RunData) -> dict[str, Any]:
    keys = [
        *_TRAINING_KEYS,
        *(series.mean_of(mount) for mount in run.mounts),
        *(series.rate_of(gate) for gate in run.gates),
        *(series.weight_of(mount) for mount in run.mounts),
        *(series.multiplier_of(mount) for mount in run.mounts),
        series.MASKED,
    ]
    there = [key for key in keys if key in run.keys]
    return {"steps": run.steps, "series": {key: run.series(key).tolist() for key in there}}


def _draw(run: RunData, report: Mapping[str, Any]) -> dict[str, tuple[bytes, str, str]]:
    """name -> (PNG, wide SVG, narrow SVG) of each figure that the run has figures for."""
    colours = {mount["name"]: mount["colour"] for mount in report["mounts"]}
    colours = {**colours, "fused": "ink", "gate": "gate", "rest": "muted"}
    colours |= {f"gate:{name}": "gate" for name in run.gates}
    evaluation, parts, head = report["evaluation"], report["contributions"], report["headline"]
    captions = page.captions(report)
    drawn: dict[str, tuple[bytes, str, str]] = {}
    with theme.drawing():
        for shape in (theme.WIDE, theme.NARROW):
            made = {
                "rewards": figures.rewards(run, colours, shape) if run.steps else None,
                "why": figures.why(parts, head["before"], colours, shape) if parts else None,
                "heldout": (
                    figures.held_out(evaluation["measures"], colours, shape) if evaluation else None
                ),
                "training": figures.training(run, shape) if run.steps else None,
            }
            for name, figure in made.items():
                if figure is None:
                    continue
                theme.settle(figure)
                if shape.narrow:
                    svg = theme.as_svg(figure, f"{name}-narrow", captions[name])
                    drawn[name] = (*drawn[name][:2], svg)
                else:
                    png = theme.as_png(figure)
                    drawn[name] = (png, theme.as_svg(figure, name, captions[name]), "")
    return drawn
