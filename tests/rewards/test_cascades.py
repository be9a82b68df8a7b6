"""Mounts that follow others: `after`, `only_if`, `when`, and the stages of a dataflow."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest

from verl_reward_sdk import ConfigError, RewardBatch, RewardError


def fused(table):
    return [None if math.isnan(value) else value for value in table.fused]


def reward(kit, name, **keys):
    return {"type": name, "provider": kit.column(name), **keys}


def gate(kit, name="g", **keys):
    return {
        "type": name,
        "provider": kit.gate_column(name),
        "role": "gate",
        "penalty": -1.0,
        **keys,
    }


def status(table, name):
    return table.columns[name].status.tolist()


# -- after and only_if -----------------------------------------------------------------------------


def test_open_asks_only_rows_that_the_gates_scored_and_had_nothing_to_say_about(kit, engine):
    columns = {
        "a": [1.0] * 5,
        "g": ["none", "penalty", "veto", "!down", None],
        "judge": [0.5] * 5,
    }
    built = engine(reward(kit, "a"), gate(kit), reward(kit, "judge", after=["g"], only_if="open"))
    table = built.score(kit.batch(columns=columns))
    assert status(table, "judge") == ["ok"] + ["not_applicable"] * 4
    assert fused(table) == [1.5, 0.0, -1.0, None, None]


def test_a_cascade_sends_only_the_asked_rows_to_the_provider(kit, engine):
    asked = []

    def judge(batch: RewardBatch):
        asked.append(batch.sample_ids)
        return [0.5] * len(batch)

    columns = {"a": [1.0] * 3, "g": ["none", "veto", "none"]}
    engine(
        reward(kit, "a"),
        gate(kit),
        {"type": "judge", "provider": kit.says(judge), "after": ["g"], "only_if": "open"},
    ).score(kit.batch(columns=columns))
    assert asked == [("s0", "s2")]


def test_only_if_may_be_a_condition_on_scores(kit, engine):
    columns = {"a": [0.1, 0.9, 0.5], "b": [1.0, 2.0, 3.0]}
    table = engine(
        reward(kit, "a"), reward(kit, "b", after=["a"], only_if="a >= 0.5 and a < 0.9")
    ).score(kit.batch(columns=columns))
    assert status(table, "b") == ["not_applicable", "not_applicable", "ok"]


def test_a_gate_may_follow_a_gate(kit, engine):
    columns = {"a": [1.0] * 2, "g": ["none", "veto"], "h": ["skip", "skip"]}
    table = engine(reward(kit, "a"), gate(kit), gate(kit, "h", after=["g"], only_if="open")).score(
        kit.batch(columns=columns)
    )
    assert status(table, "h") == ["ok", "not_applicable"]
    assert table.gate_severity.tolist() == ["skip", "veto"]


def test_after_alone_is_an_order_and_asks_every_row(kit, engine):
    order = []

    def note(name):
        def score(batch):
            order.append(name)
            return [1.0] * len(batch)

        return kit.says(score, execution="thread")

    table = engine(
        {"type": "last", "provider": note("last"), "after": ["first"]},
        {"type": "first", "provider": note("first")},
    ).score(kit.batch(2))
    assert order == ["first", "last"]
    assert status(table, "last") == ["ok", "ok"]


def test_a_cascade_does_not_wait_for_mounts_that_it_does_not_follow(kit, engine):
    done = threading.Event()

    def follow(batch):
        done.set()
        return [1.0] * len(batch)

    built = engine(
        {"type": "first", "provider": kit.says([1.0], execution="thread")},
        {
            "type": "slow",
            "provider": kit.says(lambda b: [1.0 if done.wait(20) else 0.0], execution="thread"),
        },
        {
            "type": "second",
            "provider": kit.says(follow, execution="thread"),
            "after": ["first"],
            "only_if": "first >= 1",
        },
    )
    assert fused(built.score(kit.batch(1))) == [3.0]
    done.clear()
    assert fused(asyncio.run(built.ascore(kit.batch(1)))) == [3.0]


# -- when ------------------------------------------------------------------------------------------


def test_when_that_is_false_is_not_applicable_and_contributes_zero(kit, engine):
    columns = {"format": [1.0, 0.0], "tone": [0.5, 0.75]}
    table = engine(reward(kit, "format"), reward(kit, "tone", when="format >= 1")).score(
        kit.batch(columns=columns)
    )
    assert status(table, "tone") == ["ok", "not_applicable"]
    assert fused(table) == [1.5, 0.0]
    assert table.columns["tone"].contribution.tolist() == [0.5, 0.0]


def test_when_reads_the_raw_score(kit, engine):
    columns = {"format": [1.0, 0.0], "tone": [0.5, 0.75]}
    table = engine(
        reward(kit, "format", scale=0.1, weight=0.0), reward(kit, "tone", when="format >= 1")
    ).score(kit.batch(columns=columns))
    assert fused(table) == [0.5, None]  # and a row with no score at all is masked


@pytest.mark.parametrize("key", ["when", "only_if"])
@pytest.mark.parametrize("cell", [None, "it broke"])
@pytest.mark.parametrize(("score", "expected"), [(-2.0, -2.0), (2.0, 0.0)])
def test_a_condition_without_an_answer_may_only_lower_a_row(
    kit, engine, key, cell, score, expected
):
    columns = {"format": [cell, 1.0], "tone": [score, 0.5]}
    keys = {key: "format >= 1"} | ({"after": ["format"]} if key == "only_if" else {})
    table = engine(reward(kit, "format", on_error="abstain"), reward(kit, "tone", **keys)).score(
        kit.batch(columns=columns)
    )
    assert status(table, "tone") == ["ok", "ok"]
    assert table.columns["tone"].contribution[0] == expected
    assert table.columns["tone"].scores[0] == score


def test_a_condition_on_a_mount_that_was_not_asked_is_false(kit, engine):
    columns = {"format": [1.0, 1.0], "tone": [0.5, 0.5], "k": ["a", "b"]}
    table = engine(
        reward(kit, "format", applies_to="k == 'a'"), reward(kit, "tone", when="format >= 1")
    ).score(kit.batch(columns=columns))
    assert status(table, "tone") == ["ok", "not_applicable"]


def test_a_condition_that_does_not_fit_scores_is_refused_at_load(kit, engine):
    with pytest.raises(ConfigError, match=r"reward\.tone\.when: .*does not fit scores"):
        engine(reward(kit, "format"), reward(kit, "tone", when="format >= 'good'"))


def test_conditions_name_mounts_and_the_nearest_is_told(kit, engine):
    with pytest.raises(ValueError, match=r"no mount is called 'fromat'.*did you mean 'format'"):
        engine(reward(kit, "format"), reward(kit, "tone", when="fromat >= 1"))


def test_a_circle_of_conditions_is_refused_at_load(kit, engine):
    with pytest.raises(ValueError, match="circle"):
        engine(
            reward(kit, "a", when="b >= 1"),
            reward(kit, "b", after=["a"], only_if="a >= 1"),
        )


# -- stages ----------------------------------------------------------------------------------------


def test_stages_run_in_turn_and_fuse_once_as_one_scoring_does(kit, engine):
    columns = {"a": [1.0, 0.0], "b": [0.5, 0.5], "g": ["none", "veto"]}
    built = engine(reward(kit, "a"), reward(kit, "b", when="a >= 1"), gate(kit))
    batch = kit.batch(columns=columns)
    scoring = built.open(batch)
    scoring.run(["a"])
    scoring.run(["b"])
    scoring.run(["g"])
    table = scoring.finish()
    assert table.fused.tolist() == built.score(batch).fused.tolist() == [1.5, -1.0]


def test_a_mount_in_an_earlier_stage_than_what_it_follows_is_named(kit, engine):
    built = engine(reward(kit, "a"), reward(kit, "b", when="a >= 1"))
    scoring = built.open(kit.batch(columns={"a": [1.0], "b": [1.0]}))
    with pytest.raises(ConfigError, match=r"reward\.b.*follows a, which has not run.*later one"):
        scoring.run(["b"])


def test_a_mount_runs_once(kit, engine):
    scoring = engine(reward(kit, "a")).open(kit.batch(columns={"a": [1.0]}))
    scoring.run(["a"])
    with pytest.raises(ConfigError, match="'a' is run twice"):
        scoring.run(["a"])


def test_finishing_without_a_mount_names_it(kit, engine):
    scoring = engine(reward(kit, "a"), reward(kit, "b")).open(
        kit.batch(columns={"a": [1.0], "b": [1.0]})
    )
    scoring.run(["a"])
    with pytest.raises(RewardError, match="no stage has run: b"):
        scoring.finish()
