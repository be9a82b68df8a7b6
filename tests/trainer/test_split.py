"""Evaluation by data source, and the best of n responses by the fused reward."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from verl_core.trainer.report import write_report
from verl_core.trainer.report.summary import print_summary
from verl_core.trainer.split import best_of

rewards = st.one_of(st.floats(-5, 5), st.just(math.nan))


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.lists(rewards, min_size=n, max_size=n), max_size=4)
        )
    )
)
def test_the_best_of_n_is_the_first_with_the_highest_reward_and_never_one_without(drawn):
    n, prompts = drawn
    fused = np.array([value for prompt in prompts for value in prompt])
    best = best_of(fused, n).reshape(-1, n) if len(fused) else np.empty((0, n))
    for prompt, chosen in zip(prompts, best, strict=True):
        scored = [value for value in prompt if not math.isnan(value)]
        expected = prompt.index(max(scored)) if scored else None
        assert np.flatnonzero(chosen).tolist() == ([] if expected is None else [expected])


#: The second would pass for figures of the best of two, had these not a place of their own.
SOURCES = ("lab/one", "best_of_2", None)


def with_sources(run):
    for name in ("prompts.jsonl", "heldout.jsonl"):
        path = run.folder / name
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for number, row in enumerate(rows):
            row["data_source"] = SOURCES[number % 3]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def print_closing(folder):
    """The closing table's rows: label -> the rest."""
    write_report(folder)
    target = io.StringIO()
    print_summary(folder, console=Console(file=target, width=200))
    lines = [line.strip() for line in target.getvalue().splitlines()]
    return {label: rest for label, _, rest in (line.partition("  ") for line in lines)}


def mean(rows, value):
    values = [value(row) for row in rows if value(row) is not None]
    return pytest.approx(sum(values) / len(values))


def score_of(mount):
    return lambda row: row["explain"]["mounts"][mount]["raw"]


def test_evaluation_and_training_are_split_by_data_source(tiny_run, read_jsonl):
    with_sources(tiny_run)
    settings = ("rollout.eval_n=2", "rollout.batch_rows=4", "rollout.prompts_per_step=3")
    folder = tiny_run.train("trainer.steps=1", "data.shuffle=false", *settings)
    rows = read_jsonl(folder / "eval" / "after.jsonl")
    figures = json.loads((folder / "eval" / "after.json").read_text("utf-8"))
    assert figures["step"] == 1
    named = ("lab/one", "best_of_2", "none")
    for place, source in enumerate(named):
        own = [row for row in rows if int(row["prompt_id"][1:]) % 3 == place]
        prefix = f"eval/reward/by_source/{source}"
        assert len(own) == 4
        assert figures[f"{prefix}/fused/mean"] == mean(own, lambda row: row["fused"])
        assert figures[f"{prefix}/style/mean"] == mean(own, score_of("style"))
    best = [row for row in rows if row["selected"]]
    assert figures["eval/reward/best_of/2/fused/mean"] == mean(best, lambda row: row["fused"])
    assert not any("None" in name for name in figures)
    line = read_jsonl(folder / "metrics.jsonl")[0]
    parts = [line[f"reward/by_source/{source}/fused/mean"] for source in named]
    assert sum(parts) / 3 == pytest.approx(line["reward/fused/mean"])  # a prompt each
    shown = print_closing(folder)
    assert figures["eval/reward/by_source/none/fused/mean"] == pytest.approx(
        float(shown["fused, data source none"].split()[1]), abs=5e-4
    )
    assert {"fused, data source best_of_2", "fused, best of 2 answers"} <= shown.keys()


def test_data_without_sources_are_not_split(tiny_run, read_jsonl):
    folder = tiny_run.train("trainer.steps=1", "trainer.eval_before=false")
    assert not any("by_source" in name for name in read_jsonl(folder / "metrics.jsonl")[0])
    row = read_jsonl(folder / "eval" / "after.jsonl")[0]
    assert "selected" not in row


def test_of_several_responses_the_best_by_fused_reward_is_selected_and_logged(tiny_run, read_jsonl):
    settings = ("trainer.steps=1", "trainer.eval_before=false", "rollout.batch_rows=6")
    folder = tiny_run.train(*settings, "rollout.eval_n=3")
    rows = read_jsonl(folder / "eval" / "after.jsonl")
    assert len(rows) == 18
    selected = [row for row in rows if row["selected"]]
    assert [row["prompt_id"] for row in selected] == [f"q{i}" for i in range(6)]
    for row in selected:
        mine = [other["fused"] for other in rows if other["prompt_id"] == row["prompt_id"]]
        assert row["fused"] == max(mine)
    figures = json.loads((folder / "eval" / "after.json").read_text("utf-8"))
    assert figures["eval/reward/best_of/3/fused/mean"] == mean(selected, lambda row: row["fused"])
    for mount in ("style", "overlap", "guard"):
        assert figures[f"eval/reward/best_of/3/{mount}/mean"] == mean(selected, score_of(mount))
    assert figures["eval/reward/fused/mean"] == mean(rows, lambda row: row["fused"])
