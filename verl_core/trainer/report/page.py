"""The report as one HTML page: text, tables and figures, with no file or address beside it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from verl_core.look import style_sheet
from verl_core.trainer import series
from verl_core.trainer.report import story
from verl_core.trainer.report.statistics import TOO_FEW
from verl_core.trainer.report.verdict import WHAT
from verl_reward_sdk import VerlRewardError

_STATUS = {
    "finished": "good",
    "running": "running",
    "stopped": "stopped",
    "failed": "bad",
}


def captions(report: Mapping[str, Any]) -> dict[str, str]:
    """Figure -> what it shows, for those who do not see it; it speaks of nothing that is not there.

    Args:
        report: as ``report.json`` holds it.
    """
    sides = " and ".join(sides_of(report)) or "before and after"
    kl = "KL, " if has_kl(report) else ""
    return {
        "rewards": "Rewards by mount, gate rates and weights over the training steps",
        "why": "What each mount added to the change of the fused reward",
        "heldout": f"Every measure on held-out prompts {sides} training",
        "training": f"Answer length, {kl}loss and speed over the training steps",
    }


def sides_of(report: Mapping[str, Any]) -> list[str]:
    """Which evaluations the run has: ``before``, ``after``, both or none."""
    evaluation = report["evaluation"] or {}
    return [side for side in ("before", "after") if evaluation.get(side)]


def has_kl(report: Mapping[str, Any]) -> bool:
    """Whether a step has a KL to the reference model."""
    values = report["training"]["series"].get(series.KL, ())
    return any(value is not None for value in values)


def render(report: Mapping[str, Any], svgs: Mapping[str, tuple[str, str]]) -> str:
    """The page. All text of the run (prompts, answers, names, reasons) is escaped.

    Args:
        report: as ``report.json`` holds it.
        svgs: figure -> (wide, narrow) SVG elements, as `theme.as_svg` makes them.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise VerlRewardError(
            "the report's page needs Jinja2, which is not installed: pip install 'verl-core[train]'"
        ) from error
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "num": story.number,
        "signed": story.signed,
        "percent": story.percent,
        "setting": story.setting,
        "duration": duration,
        "moment": moment,
    }
    folder = resources.files("verl_core.trainer.report")
    template = environment.from_string((folder / "page.html.j2").read_text("utf-8"))
    text = template.render(
        report=report,
        run=report["run"],
        head=report["headline"],
        evaluation=report["evaluation"],
        measures={m["name"]: m for m in (report["evaluation"] or {}).get("measures", ())},
        mounts=report["mounts"],
        colours={mount["name"]: mount["colour"] for mount in report["mounts"]},
        parts={part["mount"]: part for part in report["contributions"]},
        changed=story.changed,
        additive=all(
            answer["additive"] for example in report["examples"] for answer in example["answers"]
        ),
        sides=sides_of(report),
        has_kl=has_kl(report),
        figure_value=figure_value,
        outcome=outcome,
        too_few=TOO_FEW,
        what_checks_are=WHAT,
        svgs={name: (Markup(wide), Markup(narrow)) for name, (wide, narrow) in svgs.items()},
        status_class=_STATUS.get(report["run"]["status"], "stopped"),
        model=Path(str(report["run"]["model"] or "")).name,
        css=Markup(style_sheet() + (folder / "page.css").read_text("utf-8")),
    )
    return text.lstrip()


def figure_value(value: float | None, unit: str, *, sign: bool = False) -> str:
    """A measure's figure in its own unit: ``0.264``, ``7.5 %``, ``31.2``.

    With `sign` it is a change: that of a share is given in percentage points, ``−7.5 pp``.
    """
    shown = story.signed if sign else story.number
    if value is None:
        return "–"
    if unit == "share":
        return f"{shown(100 * value, 1)}\u00a0{'pp' if sign else '%'}"
    return shown(value, 1 if unit == "tokens" else 3)


def outcome(measure: Mapping[str, Any]) -> str:
    """``good``, ``bad`` or an empty string: whether a change beyond its interval was wanted."""
    diff = measure["diff"]
    if diff is None or diff["low"] is None or measure["better"] is None:
        return ""
    if diff["low"] <= 0 <= diff["high"]:
        return ""
    return "good" if (diff["mean"] > 0) is (measure["better"] == "up") else "bad"


def duration(seconds: float | None) -> str:
    """``4 min 3 s``."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest if not hours else 0, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


def moment(text: str | None) -> str:
    """An ISO time as ``2026-01-01 00:04``; what cannot be read is shown as it is."""
    if not text:
        return "–"
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return text
