"""What a provider must answer, and what it is given."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from verl_reward_sdk import ConfigError, ContractError, ProviderError, RewardResult


def only(table, name="m"):
    return table.columns[name]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([1.0, 2.0], ["wrong length", "got 2", "expected 3 rows"]),
        ([1.0, 2.0, 3.0, 4.0], ["wrong length", "got 4", "expected 3 rows"]),
        ([0.1, math.nan, 0.2], ["row 1", "not finite", "nan"]),
        (np.array([0.1, 0.2, math.inf]), ["row 2", "not finite", "inf"]),
        ([0.5, 0.5, 1.5], ["row 2", "outside score_range", "1.5", "[0, 1]"]),
        ([-0.25, 0.5, 0.5], ["row 0", "outside score_range", "-0.25", "[0, 1]"]),
        (["high", 0.5, 0.5], ["row 0", "no number", "'high'"]),
        (0.5, ["no sequence of scores", "float"]),
        (None, ["no sequence of scores", "NoneType"]),
        ([[0.1], [0.2], [0.3]], ["no number"]),
        (np.zeros((3, 1)), ["wrong length", "(3, 1)"]),
        (RewardResult(scores=[[1], [1, 2], []]), ["cannot be read"]),
        (RewardResult(scores=[0.1] * 3, failures={7: "?"}), ["not in the batch", "7"]),
        (RewardResult(scores=[0.1] * 3, extras={"length": [1.0]}), ["extras['length']"]),
    ],
)
def test_a_broken_answer_fails_every_row_and_says_who_where_what_and_the_bound(
    kit, engine, answer, words
):
    broken = kit.says(answer, score_range=(0.0, 1.0))
    whole = {"type": "whole", "provider": kit.says([1.0, 1.0, 1.0])}
    table = engine(
        {"type": "m", "provider": broken, "on_error": "abstain", "max_error_rate": 1.0}, whole
    ).score(kit.batch(3))
    column = only(table)
    assert column.status.tolist() == ["failed"] * 3
    assert np.isnan(column.scores).all()
    for reason in column.reasons:
        assert "m" in reason
        for word in words:
            assert word in reason


def test_the_edges_of_score_range_are_inside(kit, engine):
    provider = kit.says([0.0, 1.0, 0.5], score_range=(0.0, 1.0))
    table = engine({"type": "m", "provider": provider}).score(kit.batch(3))
    assert only(table).scores.tolist() == [0.0, 1.0, 0.5]


def test_a_contract_error_names_the_row_of_the_whole_batch(kit, engine):
    provider = kit.says(lambda batch: [0.5, 9.0], score_range=(0.0, 1.0))
    table = engine(
        {
            "type": "m",
            "provider": provider,
            "applies_to": "kind == 'math'",
            "max_error_rate": 1.0,
        }
    ).score(kit.batch(columns={"kind": ["chat", "math", "chat", "math"]}))
    assert "row 3" in only(table).reasons[3]


@pytest.mark.parametrize("absent", [None, "present"])
def test_an_abstention_may_be_none_or_not_present(kit, engine, absent):
    answer = [0.5, None] if absent is None else RewardResult([0.5, 7.0], present=[True, False])
    table = engine({"type": "m", "provider": kit.says(answer)}).score(kit.batch(2))
    assert only(table).status.tolist() == ["ok", "abstained"]
    assert math.isnan(only(table).scores[1])


def test_rows_that_a_provider_could_not_score_carry_its_reason_and_no_score(kit, engine):
    answer = RewardResult([0.5, 0.9], failures={1: "the page is gone"})
    table = engine({"type": "m", "provider": kit.says(answer)}).score(kit.batch(2))
    assert only(table).status.tolist() == ["ok", "failed"]
    assert only(table).reasons == (None, "the page is gone")
    assert math.isnan(only(table).scores[1])


def test_an_exception_fails_the_rows_with_its_reason_in_table_metrics_and_description(kit, engine):
    def crash(batch):
        raise RuntimeError("no such model")

    built = engine(
        {"type": "m", "provider": kit.says(crash), "on_error": "abstain", "max_error_rate": 1.0},
        {"type": "whole", "provider": kit.says([1.0, 1.0])},
    )
    table = built.score(kit.batch(2))
    assert only(table).reasons == ("RuntimeError: no such model",) * 2
    assert table.metrics()["reward/m/failed"] == 1.0
    described = built.describe()[0]
    assert described["last_error"] == "RuntimeError: no such model"
    assert described["state"] == "degraded"
    assert described["failures"] == 2
    assert table.fused.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_a_provider_that_exits_fails_its_rows_and_ends_nothing_else(kit, engine, execution):
    def leave(batch):
        raise SystemExit(3)

    table = engine(
        {
            "type": "m",
            "provider": kit.says(leave),
            "execution": execution,
            "max_error_rate": 1.0,
        }
    ).score(kit.batch(2))
    assert only(table).reasons[0] == "SystemExit: 3"


def test_a_provider_sees_only_the_columns_that_it_and_its_mount_declare(kit, engine):
    seen = {}

    def look(batch):
        seen.update(batch.columns)
        return [1.0] * len(batch)

    provider = kit.says(look, reads=frozenset({"truth"}))
    built = engine(
        {"type": "m", "provider": provider, "reads": ["extra"], "applies_to": "kind == 'a'"}
    )
    assert built.reads == {"truth", "extra", "kind"}
    built.score(kit.batch(columns={"truth": ["t"], "extra": ["e"], "kind": ["a"], "secret": ["s"]}))
    assert seen == {"truth": ("t",), "extra": ("e",)}


def test_a_batch_without_a_column_that_a_mount_reads_names_mount_and_nearest(kit, engine):
    built = engine({"type": "m", "provider": kit.column("ground_truth")})
    with pytest.raises(ConfigError, match=r"'ground_truth'.*'m'.*'ground_truh'"):
        built.score(kit.batch(columns={"ground_truh": [1.0]}))


def test_a_provider_cannot_change_its_batch(kit, engine):
    caught = []

    def meddle(batch):
        attempts = (
            lambda: setattr(batch, "responses", ()),
            lambda: batch.columns.__setitem__("a", ()),
            lambda: batch.columns["a"].__setitem__(0, 9.0),
            lambda: batch.response_ids[0].__setitem__(0, 9),
        )
        for attempt in attempts:
            try:
                attempt()
            except (dataclasses.FrozenInstanceError, TypeError, AttributeError, ValueError) as e:
                caught.append(type(e))
        return [1.0] * len(batch)

    batch = kit.batch(columns={"a": [1.0, 2.0]}, response_ids=[np.array([1]), np.array([2, 3])])
    engine({"type": "m", "provider": kit.says(meddle, reads=frozenset({"a"}))}).score(batch)
    assert len(caught) == 4
    assert batch.columns["a"] == (1.0, 2.0)
    assert batch.response_ids[0].tolist() == [1]


def test_a_provider_is_not_called_for_no_rows(kit, engine):
    calls = []

    def count(batch):
        calls.append(len(batch))
        return [0.0] * len(batch)

    built = engine({"type": "m", "provider": kit.says(count), "applies_to": "kind == 'x'"})
    table = built.score(kit.batch(columns={"kind": ["a", "b"]}))
    assert calls == []
    assert only(table).status.tolist() == ["not_applicable"] * 2
    assert len(built.score(kit.batch(0, columns={"kind": []}))) == 0


def test_extras_are_logged_and_absent_where_a_row_was_not_asked(kit, engine):
    provider = kit.says(lambda b: RewardResult([1.0] * len(b), extras={"words": [4.0] * len(b)}))
    table = engine({"type": "m", "provider": provider, "applies_to": "k == 1"}).score(
        kit.batch(columns={"k": [1, 2, 1]})
    )
    extras = only(table).extras["words"]
    assert np.isnan(extras).tolist() == [False, True, False]
    assert table.metrics()["reward/m/extras/words/mean"] == 4.0


@pytest.mark.parametrize("huge", [1.7e308, -1.7e308, 1e101])
def test_rewards_too_large_for_a_steps_mean_are_refused_and_never_become_nan(kit, engine, huge):
    provider = kit.says([huge, 0.5])
    with pytest.raises(ContractError, match="row 0: the fused reward is not finite, or so large"):
        engine({"type": "m", "provider": provider}).score(kit.batch(2))


def test_an_exception_that_cannot_be_shown_fails_the_rows_like_any_other(kit, engine):
    class Unspeakable(RuntimeError):
        def __str__(self):
            raise ValueError("no words")

    def score(batch):
        raise Unspeakable

    mount = {"type": "m", "provider": kit.says(score), "on_error": "abstain", "max_error_rate": 1.0}
    whole = {"type": "whole", "provider": kit.says([1.0, 1.0])}
    column = only(engine(mount, whole).score(kit.batch(2)))
    assert column.status.tolist() == ["failed"] * 2
    assert "Unspeakable" in column.reasons[0]


def test_what_an_exception_says_stays_on_one_line_without_control_characters(kit, engine):
    def score(batch):
        raise RuntimeError("\x1b[2Jgone\nand more")

    mount = {"type": "m", "provider": kit.says(score), "on_error": "abstain", "max_error_rate": 1.0}
    whole = {"type": "whole", "provider": kit.says([1.0])}
    reason = only(engine(mount, whole).score(kit.batch(1))).reasons[0]
    assert reason.isprintable()
    assert "gone and more" in reason


def test_a_provider_that_exits_in_setup_is_an_error_that_names_its_mount(kit, engine):
    def setup(self):
        raise SystemExit(3)

    provider = kit.says([1.0], setup=setup)
    with pytest.raises(ProviderError, match=r"mount 'm' .*SystemExit: 3"):
        engine({"type": "m", "provider": provider}).setup()
