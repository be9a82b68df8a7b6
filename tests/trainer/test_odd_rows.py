"""Rows that are odd and right train; one that would break a run later is told before it begins."""

from __future__ import annotations

import json

import pytest

from verl_core.trainer import jsonl
from verl_reward_sdk import ConfigError


def rows_of(tiny_run):
    lines = (tiny_run.folder / "prompts.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_a_row_that_is_nested_too_deeply_is_told_before_the_run_begins(tiny_run):
    deep = "[" * 900 + "]" * 900
    path = tiny_run.folder / "prompts.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(f'{{"prompt": "q", "ground_truth": {deep}}}\n')
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:13: .*nested deeper than 64 levels"):
        tiny_run.train()
    assert not any((tiny_run.folder / "runs").glob("*"))


def test_odd_rows_go_through_a_run(tiny_run, read_jsonl):
    """A byte order mark, CRLF, blank lines, null characters, and as many levels as there may be."""
    nested: object = "x"
    for _ in range(63):
        nested = [nested]
    rows = rows_of(tiny_run)
    for row in rows:
        row |= {"prompt": f"null \0 and \U0001f600\u2028 {row['id']}", "more": nested}
    text = "\r\n \t\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tiny_run.folder / "prompts.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    folder = tiny_run.train("trainer.steps=3", "tracking.samples_per_step=100")
    samples = list(jsonl.read(folder / "samples.jsonl"))
    assert len(samples) == 24
    assert all("null \0 and \U0001f600\u2028" in str(sample["prompt"]) for sample in samples)
    assert [line["step"] for line in read_jsonl(folder / "metrics.jsonl")] == [1, 2, 3]
