"""``/api/v1/reward/run``: the figures and samples of the run, as its page shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from verl_core import __version__
from verl_core.control.answers import answer, problems
from verl_core.control.run.correlation import correlations, opposed, window_of
from verl_core.control.run.query import SampleQuery, mapping
from verl_core.control.run.series import SeriesView
from verl_core.control.run.spelled import spelled_sum
from verl_core.control.run_answers import Correlations, RunFacts, Samples, Steps
from verl_core.control.state import ControlState
from verl_core.rewards.metric_names import reward_mounts

_LONGEST_TEXT = 20_000
Status = Literal["ok", "abstained", "failed", "not_applicable", "gated", "masked", "blocked"]


def runs_router(state: ControlState) -> APIRouter:
    """The routes over `state`'s run."""
    router = APIRouter(prefix="/api/v1/reward/run", tags=["run"])
    run = state.run

    @router.get("", response_model=RunFacts, responses=problems())
    def get_run() -> Response:
        """What the run is, how far it is, and whether it can be changed here."""
        status = state.status()
        facts = {**run.facts(), **{k: status[k] for k in ("step", "steps", "ready") if k in status}}
        mounts = [_named(mount) for mount in state.providers()]
        fixed = {
            "run_id": state.run_id,
            "server": state.server_id,
            "version": __version__,
            "kind": run.kind,
            "axis": run.axis,
            "read_only": state.read_only,
            "mounts": mounts,
        }
        return answer({**facts, **fixed})

    @router.get("/series", response_model=Steps, responses=problems(422))
    def get_series(
        edition: Annotated[str | None, Query(max_length=100)] = None,
        after: Annotated[int | None, Query()] = None,
        prefix: Annotated[list[str] | None, Query(max_length=50)] = None,
    ) -> Response:
        """The figures by step. `after` gives only later steps, as long as `edition` is that of the
        last answer; with another one all steps are given, and replace those that were.

        A run of more than 4096 steps is given more coarsely: one in `every` steps.
        """
        view = run.series(edition=edition, after=after, prefixes=prefix or ())
        content = {
            "edition": view.edition,
            "axis": run.axis,
            "every": view.every,
            "steps": list(view.steps),
            "series": {name: list(values) for name, values in view.figures.items()},
            "latest": {"step": view.latest_step, "figures": dict(view.latest)},
        }
        return answer({"run_id": state.run_id, **content})

    @router.get("/samples", response_model=Samples, responses=problems(422))
    def get_samples(
        mount: Annotated[str | None, Query(max_length=200)] = None,
        status: Annotated[Status | None, Query()] = None,
        low: Annotated[float | None, Query(allow_inf_nan=False)] = None,
        high: Annotated[float | None, Query(allow_inf_nan=False)] = None,
        text: Annotated[str, Query(max_length=200)] = "",
        step: Annotated[int | None, Query(ge=0)] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 20,
        before: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """Samples that were kept, newest first, each with its fused value spelled out.

        Without `mount`, `low` and `high` bound the fused reward, with it that mount's raw score.
        Some 2,000 samples are searched at once: `next` is where to go on, as `before`.
        """
        query = SampleQuery(
            mount=mount, status=status, low=low, high=high, text=text, step=step,
            limit=limit, before=before,
        )  # fmt: skip
        page = run.samples(query)
        content = {
            "edition": page.edition,
            "axis": run.axis,
            "samples": [_shown(number, record) for number, record in page.rows],
            "next": page.next,
            "searched": page.searched,
            "total": page.total,
        }
        return answer({"run_id": state.run_id, **content})

    @router.get("/correlation", response_model=Correlations, responses=problems(422))
    def get_correlation(
        window: Annotated[int | None, Query(ge=8, le=4096)] = None,
    ) -> Response:
        """How the rewards move together over a sliding window of steps, and where one rises while
        another falls. Of more than 12 mounts the first 12 are looked at."""
        view = run.series(prefixes=("reward/", "weights/"))
        means = _means(view)
        width = window_of(len(view.steps), window)
        places, pairs = correlations(means, width)
        marks = opposed(means, view.steps, width)
        content = {
            "axis": run.axis,
            "window": width * view.every,
            "mounts": list(means)[:12],
            "steps": [view.steps[place] for place in places],
            "pairs": [asdict(pair) for pair in pairs],
            "marks": [asdict(mark) for mark in marks],
        }
        return answer({"run_id": state.run_id, **content})

    return router


def _means(view: SeriesView) -> dict[str, Sequence[float]]:
    """Mount -> its step means, in config order."""
    nothing = [math.nan] * len(view.steps)
    names = reward_mounts(view.figures)
    return {name: view.figures.get(f"reward/{name}/mean", nothing) for name in names}


def _named(mount: Mapping[str, Any]) -> dict[str, Any]:
    return {name: mount.get(name) for name in ("name", "role", "plugin")}


def _shown(number: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """A sample as the page gets it: texts that are long beyond reading are cut."""
    shown: dict[str, Any] = {"number": number, "cut": []}
    for name in ("step", "sample_id", "group_id", "fused"):
        shown[name] = record.get(name)
    for name in ("prompt", "response", "reference"):
        text = record.get(name)
        if isinstance(text, str) and len(text) > _LONGEST_TEXT:
            shown["cut"].append(name)
            text = text[:_LONGEST_TEXT]
        shown[name] = text
    shown["explain"] = mapping(record.get("explain"))
    shown["sum"] = spelled_sum(record)
    return shown
