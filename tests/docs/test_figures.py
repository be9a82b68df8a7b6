"""docs/fusion.md: the keys of its table of figures are those of a run's files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "fusion.md").read_text("utf-8")
#: What the page calls a mount, and what the run of the tests does.
MOUNTS = {"tone": "style"}


@pytest.fixture
def folder(tiny_run):
    """A run whose rows come from two sources, and some from none, evaluated with two responses."""
    for name in ("prompts.jsonl", "heldout.jsonl"):
        path = tiny_run.folder / name
        lines = path.read_text("utf-8").splitlines()
        rows = [
            json.loads(line) | {"data_source": ("shop", "lab", None)[number % 3]}
            for number, line in enumerate(lines)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return tiny_run.train(
        "trainer.steps=1", "rollout.eval_n=2", "rollout.prompts_per_step=6", "data.shuffle=false"
    )


def test_the_keys_of_the_page_are_in_the_files_that_it_names(folder):
    [table] = re.findall(
        r"^\| key \| in \| the mean over \|\n.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE
    )
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    files = {
        "`metrics.jsonl`": json.loads(lines[0]),
        "`eval/*.json`": json.loads((folder / "eval" / "after.json").read_text("utf-8")),
    }
    named = set()
    for line in table.splitlines():
        keys, file, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for key in re.findall(r"`([^`]+)`", keys):
            named.add(key.replace("tone", MOUNTS["tone"]))
            assert key.replace("tone", MOUNTS["tone"]) in files[file], key
    split = re.compile(r"by_source|^eval/(?!reward|timing_s|weights)|/best_of/")
    for figures in files.values():
        found = {key for key in figures if split.search(key) and re.search("fused|style", key)}
        assert {re.sub("/(lab|none)/", "/shop/", key) for key in found} <= named


def test_the_best_of_two_is_marked_in_the_rows(folder):
    assert (folder / "eval" / "before.json").exists()
    text = (folder / "eval" / "after.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    assert sum(row["selected"] for row in rows) * 2 == len(rows)
