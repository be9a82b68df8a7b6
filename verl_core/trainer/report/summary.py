"""The last thing a run prints: what changed, where it all lies, and how to try the model."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from verl_core.trainer.display import printable
from verl_core.trainer.near import near
from verl_core.trainer.report.failures import failure_sentences
from verl_core.trainer.report.page import figure_value, outcome
from verl_core.trainer.report.statistics import TOO_FEW
from verl_core.trainer.report.story import changes, earlier, idle, number, signed, without
from verl_core.trainer.report.verdict import WHAT
from verl_core.trainer.run_folder import held_out_prompts

_SPLITS = 8
"""So many data sources are shown here; the report shows all."""

_STYLES = {"good": "green", "bad": "red", "": ""}


def print_summary(
    run_dir: Path, *, console: Console | None = None, talk: str | None = None
) -> None:
    """Print the summary of a run whose report has been written.

    Args:
        run_dir: the run's folder, with ``report/report.json`` in it.
        console: where to print; standard output by default.
        talk: the command that talks to the model; left out, `talk_command` gives it, where the
            run has saved its model.
    """
    console = printable(console or Console())
    report = json.loads((run_dir / "report" / "report.json").read_bytes())
    console.print()
    if report["headline"]["kind"] == "held_out":
        console.print(_measures(report))
    else:  # there is no before and after to set side by side
        console.print(Text(report["story"][0]))
        told = [earlier(report), *changes(report["revisions"]), *_split_lines(report)]
        for sentence in filter(None, told):
            console.print(Text(sentence))
    if sentence := idle(report):
        console.print(Text(sentence, style="yellow"))
    checks = report["verdict"].get("checks", [])
    if reason := report["verdict"].get("left_out"):
        console.print(Text(f"The built-in checks are left out: {reason}."))
    if checks:
        console.print(_checks(checks))
        console.print(Text(f"{WHAT}\nSE: standard error of the change.", style="dim"))
    for sentence in without(report):
        console.print(Text(sentence))
    for sentence in failure_sentences(report.get("failures", ())):
        console.print(Text(sentence.replace("\u00a0", " "), style="yellow"))
    console.print()
    for label, place in _places(run_dir, talk or talk_command(run_dir)):
        # Not wrapped, so that a command can be copied whole.
        line = Text.assemble((f"{label}  ", "dim"), (place, "bold"))
        console.print(line, soft_wrap=True)


def talk_command(run_dir: Path) -> str | None:
    """The command that talks to the run's model, from here; None where it was not saved.

    Where the run has held-out prompts, it answers some of them: with their system line and facts,
    as the model was trained, while a bare question comes without.
    """
    model = run_dir / "model"
    if not model.exists():
        return None
    program = shutil.which("verl-reward", path=str(Path(sys.executable).parent))
    if program is not None:
        words = [near(Path(program)), "talk", near(model)]
    else:
        words = [near(Path(sys.executable)), "-m", "verl_core.trainer.talk", near(model)]
    prompts, key = held_out_prompts(run_dir)
    if prompts is not None:
        words += ["--prompts", near(prompts)]
        words += [] if key == "prompt" else ["--prompt-key", key]
    return shlex.join(words)


def _figure(value: float | None, unit: str, *, sign: bool = False) -> str:
    """As the page shows it, with characters that every terminal has."""
    shown = figure_value(value, unit, sign=sign)
    return shown.replace("−", "-").replace("\u00a0", " ")


def _measures(report: Mapping[str, Any]) -> Table:
    head = report["headline"]
    prompts = f" on {head['prompts']} held-out prompts" if "prompts" in head else ""
    table = Table(
        title=f"{report['run']['name']}: before and after{prompts}",
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("measure")
    for name in ("before", "after", "change", "95 % interval", "change\n/ SE"):
        table.add_column(name, justify="right", no_wrap=True)
    for measure in report["evaluation"]["measures"]:
        unit, diff = measure["unit"], measure["diff"]
        means = [
            _figure(measure[side]["mean"] if measure[side] else None, unit)
            for side in ("before", "after")
        ]
        change = _figure(diff["mean"], unit, sign=True) if diff else "–"
        interval = TOO_FEW.replace(" to ", "\nto ") if diff else "–"
        if diff and diff["low"] is not None:
            low, high = (_figure(diff[end], unit, sign=True) for end in ("low", "high"))
            interval = f"{low.removesuffix(' pp')} to {high}"
        reference = measure["reference"]
        label = measure["label"] + (f"\n(references {number(reference, 1)})" if reference else "")
        style = _STYLES[outcome(measure)]
        table.add_row(
            Text(label, style="bold" if measure["kind"] == "fused" else ""),
            *means,
            Text(change, style=style),
            interval,
            signed(measure["z"], 1).replace("−", "-"),
            end_section=measure["kind"] == "fused",
        )
    _add_splits(table, report.get("splits", ()))
    return table


def _add_splits(table: Table, splits: Sequence[Mapping[str, Any]]) -> None:
    """The fused reward of each data source, and of the best of n answers, in rows of their own."""
    table.add_section()
    for one in splits[:_SPLITS]:
        before, after = one["before"], one["after"]
        change = None if before is None or after is None else after - before
        means = [_figure(value, "score") for value in (before, after)]
        label = one["label"].removeprefix("the ")
        table.add_row(
            Text(f"fused, {label}"), *means, _figure(change, "score", sign=True), "–", "–"
        )
    if len(splits) > _SPLITS:
        table.add_row(Text(f"{len(splits) - _SPLITS} more parts: in the report", style="dim"))


def _split_lines(report: Mapping[str, Any]) -> list[str]:
    """As `_add_splits`, a line an evaluation, where there are no two to set side by side."""
    lines = []
    for side in ("before", "after"):
        found = [one for one in report.get("splits", ()) if one[side] is not None]
        if found:
            said = ", ".join(f"{one['label']} {number(one[side])}" for one in found[:_SPLITS])
            more = f", {len(found) - _SPLITS} more in the report" if len(found) > _SPLITS else ""
            lines.append(f"Held-out fused reward {side} training: {said}{more}.")
    return lines


def _checks(checks: Sequence[Mapping[str, Any]]) -> Table:
    """One line a check; the target stands beneath where it was missed."""
    table = Table.grid(padding=(0, 2))
    table.title = Text("built-in checks", style="bold")
    table.title_justify, table.title_style = "left", ""
    table.add_column(no_wrap=True)
    for check in checks:
        word = Text("met", style="green") if check["met"] else Text("NOT MET", style="bold red")
        name = Text(check["name"])
        if not check["met"]:
            name.append(f"\ntarget: {check['target']}", style="red")
        table.add_row(word, name, check["found"])
    return table


def _places(run_dir: Path, talk: str | None) -> list[tuple[str, str]]:
    places = [
        ("run folder", near(run_dir)),
        ("report    ", near(run_dir / "report" / "index.html")),
    ]
    return [*places, ("talk to it", talk)] if talk else places
