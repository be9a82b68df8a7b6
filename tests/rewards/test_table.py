"""RewardTable: explain, metrics, and that it never changes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from verl_reward_sdk import RewardTableView


@pytest.fixture
def table(kit, engine):
    columns = {
        "a": [1.0, None, "broke", 0.5, 0.25],
        "b": [0.5, 0.25, 0.5, 0.5, 0.5],
        "g": ["none", "penalty", "none", "veto", "skip"],
    }
    built = engine(
        {"type": "a", "provider": kit.column("a"), "weight": 2.0},
        {"type": "g", "provider": kit.gate_column("g"), "role": "gate", "penalty": -1.0},
        {"type": "b", "provider": kit.column("b")},
    )
    return built.score(kit.batch(columns=columns, group_ids=[0, 0, 0, 1, 1]))


def test_explain_gives_every_component_of_a_row(table):
    assert table.explain(1) == {
        "fused": 1.25,
        "additive": True,
        "revision": table.revision,
        "generations": {"a": 1, "g": 1, "b": 1},
        "masked": None,
        "blocked": False,
        "reason": None,
        "gate": "penalty",
        "mounts": {
            "a": {
                "role": "reward",
                "raw": None,
                "normalised": 1.0,
                "weight": 2.0,
                "contribution": 2.0,
                "status": "abstained",
                "reason": None,
                "severity": "none",
            },
            "g": {
                "role": "gate",
                "raw": 0.0,
                "normalised": None,
                "weight": None,
                "contribution": -1.0,
                "status": "ok",
                "reason": None,
                "severity": "penalty",
            },
            "b": {
                "role": "reward",
                "raw": 0.25,
                "normalised": 0.25,
                "weight": 1.0,
                "contribution": 0.25,
                "status": "ok",
                "reason": None,
                "severity": "none",
            },
        },
    }


def test_a_masked_row_explains_itself_and_carries_no_numbers_of_the_fusion(table):
    explained = table.explain(2)
    assert explained["fused"] is None
    assert explained["masked"] == "a failed"
    assert explained["mounts"]["a"]["reason"] == "broke"
    assert [mount["contribution"] for mount in explained["mounts"].values()] == [None] * 3


def test_explanations_are_strict_json(table):
    for row in range(len(table)):
        json.dumps(table.explain(row), allow_nan=False)


def test_contributions_add_up_to_the_fused_value(table):
    for row in (0, 1, 3, 4):
        explained = table.explain(row)
        total = sum(mount["contribution"] for mount in explained["mounts"].values())
        assert total == pytest.approx(explained["fused"])


@pytest.mark.parametrize("row", [5, -6])
def test_there_is_no_row_beyond_the_last(table, row):
    with pytest.raises(IndexError, match="of a table of 5 rows"):
        table.explain(row)


def test_metrics(table):
    figures = table.metrics()
    assert figures["reward/a/mean"] == pytest.approx((1.0 + 0.5 + 0.25) / 3)
    assert figures["reward/a/std"] == pytest.approx(np.std([1.0, 0.5, 0.25]))
    assert figures["reward/a/abstained"] == figures["reward/a/failed"] == 0.2
    assert figures["reward/a/not_applicable"] == 0.0
    assert figures["reward/g/penalty"] == figures["reward/g/veto"] == figures["reward/g/skip"]
    assert figures["reward/g/rate"] == pytest.approx(0.6)
    assert figures["reward/fused/mean"] == pytest.approx(np.nanmean(table.fused))
    assert figures["reward/masked"] == figures["reward/skipped"] == 0.2
    assert figures["reward/blocked"] == 0.0
    assert figures["weights/a"] == 2.0
    assert figures["weights/b"] == 1.0
    assert "weights/g" not in figures
    assert figures["weights/revision"] == table.revision
    assert all(math.isfinite(value) for value in figures.values())


def test_a_table_never_changes(table):
    for array in (table.fused, table.masked, table.columns["a"].scores, table.gate_words):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        table.step = 9


def test_a_table_is_what_observers_are_promised(table):
    assert isinstance(table, RewardTableView)
