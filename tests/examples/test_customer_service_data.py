"""The customer-service example: its data, and what its rules and words say about them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from verl_core.config import load_run_config
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.table import RewardTable
from verl_reward_sdk import RewardBatch

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "customer-service"
FILES = ("prompts.jsonl", "heldout.jsonl")

Row = dict[str, Any]
Judge = Callable[[Sequence[Row], Sequence[str]], RewardTable]


def read(name: str) -> list[Row]:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


TRAIN, HELDOUT = (read(name) for name in FILES)
ALL = TRAIN + HELDOUT
PRODUCTS = {
    product["id"]: product
    for product in yaml.safe_load((FOLDER / "catalogue.yaml").read_text("utf-8"))["products"]
}


def references(rows: Sequence[Row]) -> list[str]:
    return [row["ground_truth"] for row in rows]


def asked(row: Row) -> str:
    text: str = row["prompt"][1]["content"]
    return text


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """Scores responses to rows by the example's own config."""
    config = load_run_config(FOLDER / "run.yaml")
    with RewardEngine.from_config(config.eval_rewards(), frozen_weights=True) as engine:

        def score(rows: Sequence[Row], responses: Sequence[str]) -> RewardTable:
            records = [
                {"sample_id": row["id"], "response": response, **row}
                for row, response in zip(rows, responses, strict=True)
            ]
            return engine.score(RewardBatch.from_records(records))

        yield score


def test_the_script_makes_the_committed_files_again(tmp_path: Path) -> None:
    script = [sys.executable, str(FOLDER / "make_data.py"), "--out", str(tmp_path)]
    subprocess.run(script, check=True, capture_output=True, cwd=tmp_path, timeout=60)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name


def test_there_are_enough_rows_and_none_stands_twice() -> None:
    assert len(TRAIN) >= 340
    assert len(HELDOUT) >= 120
    assert len({row["id"] for row in ALL}) == len(ALL)
    assert len({asked(row) for row in ALL}) == len(ALL)


def test_each_row_has_the_columns_that_the_readme_promises() -> None:
    columns = {"id", "prompt", "ground_truth", "answer", "product", "intent", "data_source"}
    for row in ALL:
        assert set(row) == columns
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        assert row["product"] in PRODUCTS
        assert row["data_source"] == "customer-service"


def test_no_pair_of_product_and_intent_is_on_both_sides() -> None:
    train = {(row["product"], row["intent"]) for row in TRAIN}
    assert not train & {(row["product"], row["intent"]) for row in HELDOUT}


def test_a_third_of_the_held_out_rows_is_about_products_never_seen_in_training() -> None:
    prompts = "\n".join(asked(row) for row in TRAIN)
    unseen = {key for key, product in PRODUCTS.items() if product["name"] not in prompts}
    assert len(unseen) == 10
    assert sum(row["product"] in unseen for row in HELDOUT) >= len(HELDOUT) / 3


def test_both_files_ask_about_all_intents() -> None:
    train, heldout = (Counter(row["intent"] for row in rows) for rows in (TRAIN, HELDOUT))
    assert set(train) == set(heldout)
    assert len(train) >= 12
    assert min(train.values()) >= 5


def test_no_placeholder_or_double_space_is_left_in_a_text() -> None:
    for row in ALL:
        for text in (asked(row), row["ground_truth"]):
            assert not re.search(
                r"[{}]|  |None|\ba (?!one)[aeio]\w|\ban [^aeio\W]|[.?!] [a-z]", text
            ), text


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_a_plural_product_is_never_spoken_of_in_the_singular(product: Row) -> None:
    rows = [row for row in ALL if row["product"] == product["id"] and row["intent"] != "comparison"]
    wrong = r"\b(it|one)\b" if product.get("plural") else r"\b(they|them|a pair)\b"
    for row in rows:
        text = f"{asked(row)} {row['ground_truth']}"
        for idiom in (product["care"], "one good reason", "worth it"):
            text = text.replace(idiom, "")
        assert not re.search(wrong, text, re.IGNORECASE), text


def test_each_figure_of_a_reference_stands_in_its_prompt() -> None:
    for row in ALL:
        figures = set(re.findall(r"\d+(?:\.\d+)?", row["ground_truth"]))
        assert figures <= set(re.findall(r"\d+(?:\.\d+)?", asked(row))), row["id"]


def test_references_have_15_to_40_words() -> None:
    counts = [len(text.split()) for text in references(ALL)]
    assert min(counts) >= 15
    assert max(counts) <= 40
    assert 20 <= sum(counts) / len(counts) <= 30


def test_sold_out_products_are_reserved_and_others_ordered() -> None:
    for row in ALL:
        reserved = "reserve" in row["ground_truth"]
        assert reserved == (not PRODUCTS[row["product"]]["stock"]), row["ground_truth"]


@pytest.mark.parametrize("rows", [TRAIN, HELDOUT], ids=FILES)
def test_every_reference_gets_its_marks_and_never_trips_the_gate(
    judge: Judge, rows: list[Row]
) -> None:
    table = judge(rows, references(rows))
    assert set(table.gate_severity) == {"none"}
    for name, least in (("tone", 1.0), ("conversion", 1.0), ("compliance", 0.75)):
        scores = table.columns[name].scores
        low = [rows[i]["ground_truth"] for i in range(len(rows)) if scores[i] < least - 1e-9]
        assert not low, name


@pytest.mark.parametrize("rows", [TRAIN, HELDOUT], ids=FILES)
def test_the_answer_is_part_of_the_reference_and_alone_has_full_accuracy(
    judge: Judge, rows: list[Row]
) -> None:
    assert all(row["answer"] in row["ground_truth"] for row in rows)
    alone = judge(rows, [row["answer"] for row in rows]).columns["accuracy"].scores
    assert min(alone) > 1 - 1e-9
    assert min(judge(rows, references(rows)).columns["accuracy"].scores) > 0.4


@pytest.mark.parametrize(
    ("response", "word"),
    [
        ("Thank you for asking. It is the best one that we have. Shall I order it?", "best"),
        ("It is a PERFECT present for a baker.", "perfect"),
        ("It is 100% waterproof.", "100%"),
        ("We are the #1 shop for tents.", "#1"),
        ("We guarantee that you will like it.", "guarantee"),
        ("这是全国第一的帐篷。", "全国第一"),
    ],
)
def test_the_gate_names_the_forbidden_word(judge: Judge, response: str, word: str) -> None:
    table = judge(HELDOUT[:1], [response])
    assert table.gate_severity[0] == "veto"
    assert table.fused[0] == -1.0
    assert f'"{word}"' in (table.columns["guard"].reasons[0] or "")


@pytest.mark.parametrize(
    "response",
    [
        "Thank you for asking. It comes with a 3-year warranty. Best regards, your Larkfell team.",
        "It is a good, sturdy pan. We do our best to deliver in two days.",
    ],
)
def test_the_gate_lets_harmless_phrases_through(judge: Judge, response: str) -> None:
    assert judge(HELDOUT[:1], [response]).gate_severity[0] == "none"


@pytest.mark.parametrize(
    ("mount", "better", "worse"),
    [
        ("tone", "Thank you for asking. You can wash it.", "You can wash it."),
        ("tone", "Thank you for asking. You can wash it.", "Hey dude, you can wash it."),
        ("tone", "Thank you for asking. You can wash it.", "THANK YOU! Wash it!! You!"),
        ("conversion", "It is blue. Would you like to order one?", "It is blue."),
        ("conversion", "It is blue. Would you like to order one?", "Order now, it is blue."),
        (
            "conversion",
            "It is blue. Would you like to order one?",
            "Would you like to order one? Would you like to order one?",
        ),
        (
            "compliance",
            "It weighs two kilos and is made of steel. Would you like to order one?",
            "It weighs two kilos and is made of steel. Would you like to order one and get",
        ),
        (
            "compliance",
            "It weighs two kilos and is made of steel. Would you like to order one?",
            "It weighs two kilos, with a 20% discount today. Would you like to order one?",
        ),
        (
            "compliance",
            "It weighs two kilos and is made of steel. Would you like to order one?",
            "It weighs two kilos and it will never rust. Would you like to order one?",
        ),
    ],
)
def test_a_better_answer_scores_higher(judge: Judge, mount: str, better: str, worse: str) -> None:
    scores = judge(HELDOUT[:2], [better, worse]).columns[mount].scores
    assert scores[0] > scores[1]


@pytest.mark.parametrize(
    ("response", "share"),
    [
        ("", 0.0),
        ("?", 0.1),
        ("Thank you. " * 12, 0.3),
        ("order basket please thank you your may I shall I would you like order order", 0.5),
        ("Thank you for asking. Would you like to order one?", 0.7),
        ("Thank you for asking. You are welcome to it. May I add it to your basket?", 0.75),
    ],
)
def test_one_answer_to_every_question_earns_at_most_a_share_of_a_real_one(
    judge: Judge, response: str, share: float
) -> None:
    real = judge(HELDOUT, references(HELDOUT)).fused.mean()
    assert judge(HELDOUT, [response] * len(HELDOUT)).fused.mean() <= share * real
