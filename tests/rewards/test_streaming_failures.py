"""A step's rows scored as they come: slices that fail, rows that never come or come twice, and
mounts that run out of turn."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.rewards.streams import N, bits, opened, streamed, whole
from verl_reward_sdk import RewardBatch
from verl_reward_sdk.errors import ConfigError, ContractError, RewardError


def test_a_slice_that_fails_leaves_the_others_and_names_rows_of_the_step(kit, engine):
    def breaks(batch):
        scores = kit.lengths(batch)
        if "s5" in batch.sample_ids:
            scores[1] = float("nan")
        return scores

    built = engine({"type": "m", "provider": kit.says(breaks, execution="thread"), **kit.lenient})
    column = streamed(built, whole(kit), [range(N)]).columns["m"]
    assert list(column.status) == ["ok"] * 4 + ["failed"] * 4 + ["ok"] * 4
    assert "row 5" in column.reasons[4]


@pytest.mark.parametrize(("rate", "raises"), [(0.25, True), (0.34, False)])
def test_the_share_of_failures_is_the_steps_not_a_slices(kit, engine, rate, raises):
    cells = ["down"] * 4 + [1.0] * 8
    mount = {"type": "m", "provider": kit.column("cells"), "max_error_rate": rate}
    built, batch = engine(mount), whole(kit, columns={"cells": cells})
    if not raises:
        assert streamed(built, batch, [range(N)]).masked.tolist() == [True] * 4 + [False] * 8
        return
    with pytest.raises(RewardError, match="4 of 12 rows failed"):
        streamed(built, batch, [range(N)])


def test_an_error_of_the_thread_that_launches_is_raised_to_whoever_waits(kit, engine):
    built = engine(
        {"type": "a", "provider": kit.says(kit.lengths, execution="thread")},
        {"type": "b", "provider": kit.says(kit.lengths, execution="thread"), "reads": ["x"]},
    )
    scoring = opened(built, whole(kit))
    scoring.submit(whole(kit))
    with pytest.raises(ConfigError, match="no column 'x'"):
        scoring.run(built.mounts)


def test_rows_of_another_step_and_rows_that_come_twice_are_refused(kit, engine):
    built = engine({"type": "m", "provider": kit.says(kit.lengths)})
    batch = whole(kit)
    scoring = opened(built, batch)
    scoring.submit(batch.take([1]))
    with pytest.raises(ContractError, match="came twice"):
        scoring.submit(batch.take([0, 1]))
    with pytest.raises(ContractError, match="not of this step"):
        scoring.submit(RewardBatch(sample_ids=["z"], prompts=["p"], responses=["r"]))
    with pytest.raises(ContractError, match="whole batch"):
        scoring.complete(batch.take(range(N - 1)))
    scoring.complete(batch)
    scoring.run(["m"])
    assert bits(scoring.finish()) == bits(built.score(batch))


def test_rows_that_never_came_are_named_not_waited_for(kit, engine):
    built = engine({"type": "m", "provider": kit.says(kit.lengths)})
    batch = whole(kit)
    scoring = opened(built, batch)
    scoring.submit(batch.take(range(N - 1)))
    with pytest.raises(RewardError, match=r"1 of 12 rows of the step never came, such as 's11'"):
        scoring.run(["m"])


def test_a_mount_that_runs_twice_or_before_one_that_it_follows_is_refused(kit, engine):
    built = engine(
        {"type": "a", "provider": kit.says(kit.lengths)},
        {"type": "b", "provider": kit.says(kit.lengths), "when": "a > 0"},
    )
    scoring = opened(built, whole(kit), early=())
    scoring.complete(whole(kit))
    with pytest.raises(ConfigError, match="'b' follows a, which has not run"):
        scoring.run(["b"])
    scoring.run(["a", "b"])
    with pytest.raises(ConfigError, match="'a' is run twice"):
        scoring.run(["a"])


def test_a_mount_that_no_stage_runs_is_missed_at_the_end(kit, engine):
    built = engine(
        {"type": "a", "provider": kit.says(kit.lengths)},
        {"type": "b", "provider": kit.says(kit.lengths)},
    )
    scoring = opened(built, whole(kit))
    scoring.complete(whole(kit))
    scoring.run(["a"])
    with pytest.raises(RewardError, match="no stage has run: b"):
        scoring.finish()


def test_a_step_without_rows_is_an_empty_table(kit, engine):
    built = engine(
        {"type": "a", "provider": kit.says_later(kit.lengths_later)},
        {"type": "b", "provider": kit.says(kit.lengths), "when": "a > 0"},
    )
    scoring = built.stream([], [], early=["a"])
    scoring.run(built.mounts)
    assert len(scoring.finish()) == 0


def test_a_step_that_cannot_be_is_refused_when_it_begins(kit, engine):
    built = engine({"type": "tone", "provider": kit.says(kit.lengths)})
    with pytest.raises(ContractError, match="group_ids has a wrong length: got 1, expected 2 rows"):
        built.stream(["a", "b"], ["g"])
    with pytest.raises(ContractError, match="a sample id stands twice: got 'b'"):
        built.stream(["a", "b", "b"])
    for groups in (0, -1):
        with pytest.raises(ValueError, match="slice_groups must be at least 1"):
            built.stream(["a"], slice_groups=groups)


def test_a_mount_that_is_not_there_is_named_with_the_nearest(kit, engine):
    built = engine({"type": "tone", "provider": kit.says(kit.lengths)})
    batch = whole(kit)
    scoring = opened(built, batch)
    scoring.submit(batch)
    with pytest.raises(ConfigError, match=r"there is no mount 'tune'.*did you mean 'tone'"):
        scoring.run(["tune"])


def test_what_is_overdue_is_ended_while_the_caller_is_busy(kit, engine):
    """Also where the calls before it may take longer, and nobody waits yet."""
    cancelled = threading.Event()

    async def patient(batch):
        await asyncio.sleep(0.5)
        return kit.lengths(batch)

    async def hangs(batch):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    built = engine(
        {"type": "slow", "provider": kit.says_later(patient), "timeout": 60},
        {"type": "hung", "provider": kit.says_later(hangs), "timeout": 0.2, **kit.lenient},
    )
    batch = whole(kit)
    scoring = opened(built, batch)
    scoring.submit(batch.take([0]))
    assert cancelled.wait(30)
    scoring.submit(batch.take(range(1, N)))
    scoring.run(built.mounts)
    table = scoring.finish()
    assert set(table.columns["slow"].status) == {"ok"}
    assert set(table.columns["hung"].status) == {"failed"}
