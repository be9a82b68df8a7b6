"""What a failed step says of its failures, and whether it is any use to score it again."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from verl_core.rewards.failures import LastingRewardError
from verl_core.rewards.row_words import failed_rows
from verl_core.rewards.weights import WeightStore
from verl_reward_sdk import RewardError


def broken(batch):
    return [0.0] * (len(batch) + 1)


def down(batch):
    raise ConnectionError("down")


@pytest.mark.parametrize(
    ("answer", "deterministic", "lasting"),
    [(broken, True, True), (broken, False, False), (down, True, False)],
)
def test_a_broken_contract_of_a_deterministic_provider_lasts(
    kit, engine, answer, deterministic, lasting
):
    mount = {"type": "a", "provider": kit.says(answer, deterministic=deterministic)}
    with pytest.raises(RewardError, match="4 of 4 rows failed") as caught:
        engine(mount).score(kit.batch(4))
    assert isinstance(caught.value, LastingRewardError) is lasting


def test_failures_of_another_kind_beside_it_may_pass(kit, engine):
    mounts = [{"type": n, "provider": kit.says(f)} for n, f in (("a", broken), ("b", down))]
    with pytest.raises(RewardError) as caught:
        engine(*mounts).score(kit.batch(4))
    assert not isinstance(caught.value, LastingRewardError)


@pytest.mark.parametrize("first", [True, False], ids=["contract first", "contract last"])
def test_of_a_step_in_slices_every_slice_counts(kit, engine, first):
    def half(batch):
        return broken(batch) if ("answer 0" in batch.responses) is first else down(batch)

    whole = kit.batch(4, group_ids=[0, 0, 1, 1])
    scoring = engine({"type": "a", "provider": kit.says(half)}).stream(
        whole.sample_ids, whole.group_ids
    )
    scoring.complete(whole)
    with pytest.raises(RewardError, match="4 of 4 rows failed") as caught:
        scoring.run(["a"])
    assert not isinstance(caught.value, LastingRewardError)


def test_a_step_without_a_live_row_names_its_gates_and_their_first_reasons(kit, engine):
    gates = [
        {"type": name, "provider": kit.gate_column(name), "role": "gate", "penalty": -1.0}
        for name in ("g", "h")
    ]
    columns = {"g": ["!the list is gone", "none"], "h": ["none", None], "a": [0.5, 0.5]}
    with pytest.raises(RewardError) as caught:
        engine({"type": "a", "provider": kit.column("a")}, *gates).score(kit.batch(columns=columns))
    said = str(caught.value)
    assert "1 x gate failed (g, at first: !the list is gone)" in said
    assert "1 x gate abstained (h)" in said
    assert not isinstance(caught.value, LastingRewardError)


def test_a_gate_that_breaks_its_contract_lasts_too(kit, engine):
    gate = {"type": "g", "provider": kit.says(broken, role="gate"), "role": "gate", "penalty": -1.0}
    reward = {"type": "a", "provider": kit.column("a")}
    with pytest.raises(LastingRewardError, match=r"2 x gate failed \(g, at first: g"):
        engine(reward, gate).score(kit.batch(columns={"a": [0.5, 0.5]}))


# -- which rows --


@pytest.mark.parametrize(
    ("failed", "rows", "said"),
    [
        ([0, 1], None, "2 of 4 rows failed"),
        ([0, 1, 2, 3], [4, 5, 6, 7], "rows 4 to 7 failed"),
        ([2], [4, 5, 6, 7], "row 6 failed"),
        ([0, 3], [4, 5, 6, 7], "rows 4, 7 failed"),
        (list(range(8)), list(range(0, 16, 2)), "rows 0, 2, 4, 6, 8, 10 and 2 more failed"),
    ],
)
def test_rows_are_counted_of_a_whole_batch_and_numbered_of_a_part(failed, rows, said):
    assert failed_rows(failed, 4, rows) == said


def test_a_slice_that_fails_is_told_by_the_numbers_that_its_reason_names(kit, engine, caplog):
    def score(batch):
        return [math.nan if text == "answer 2" else 0.5 for text in batch.responses]

    whole = kit.batch(4, group_ids=[0, 0, 1, 1])
    mount = {"type": "a", "provider": kit.says(score), "max_error_rate": 1.0}
    scoring = engine(mount).stream(whole.sample_ids, whole.group_ids)
    scoring.complete(whole)
    with caplog.at_level(logging.WARNING):
        scoring.run(["a"])
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("mount a: rows 2 to 3 failed: ")
    assert "row 2" in said.removeprefix("mount a: rows 2 to 3 failed: ")


# -- what a sum is made of --


def test_under_constrained_weight_and_multiplier_explain_the_contribution(kit, engine):
    built = engine(
        {"type": "a", "provider": kit.column("a"), "weight": 2.0},
        {"type": "b", "provider": kit.column("b"), "weight": 0.5, "normalize": "batch"},
        policy="constrained",
        fusion={"bounds": {"b": 0.9}, "rate": 0.5},
    )
    columns = {"a": [0.1, 0.7], "b": [0.2, 0.6]}
    built.step_end(built.score(kit.batch(columns=columns)))
    table = built.score(kit.batch(columns=columns, step=4))
    for row in range(2):
        told = table.explain(row)
        a, b = told["mounts"]["a"], told["mounts"]["b"]
        assert "multiplier" not in a
        assert b["multiplier"] == pytest.approx(0.5 * (0.9 - 0.4))
        added = (b["weight"] + b["multiplier"]) * b["normalised"]
        assert b["contribution"] == pytest.approx(added)
        assert told["fused"] == pytest.approx(a["weight"] * a["raw"] + added)
    assert np.isfinite(table.fused).all()


# -- a base that differs --


def test_a_resumed_run_tells_its_weights_in_words_and_the_pin_that_is_in_force(tmp_path, caplog):
    linear = {"linear": {"from": 2.0, "to": 0.5, "steps": 200}}
    path = tmp_path / "weights.db"
    with_both = {"a": linear, "b": 1.0}
    store = WeightStore(with_both, run_id="r", path=path)
    store.update({"a": 0.7}, author="mia")
    store.close()
    with caplog.at_level(logging.WARNING):
        WeightStore({"a": 3.0, "b": linear}, run_id="r", path=path).close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "weight is 3 in the config now; the run keeps the live weight 0.7" in said[0]
    assert "pinned over linear 2 → 0.5 over 200 steps" in said[0]
    assert "weight is linear 2 → 0.5 over 200 steps in the config now" in said[1]
    assert "the run keeps 1, with which it started" in said[1]
