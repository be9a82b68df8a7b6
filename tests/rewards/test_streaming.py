"""A step's rows scored as they come: the same bits in any order, and nobody waits for the rest."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.rewards.answer import Answer
from verl_core.rewards.hidden import hidden_and_exposed
from verl_core.rewards.joined import JoinedAnswer
from verl_reward_sdk import RewardBatch, RewardResult
from verl_reward_sdk.errors import ConfigError, ContractError, RewardError

N = 12
GROUPS = [f"g{row // 4}" for row in range(N)]


def whole(kit, **fields) -> RewardBatch:
    """Three groups of four rows."""
    return kit.batch(N, group_ids=GROUPS, **fields)


def opened(engine, batch, **options):
    lease = engine.lease(batch.step)
    return engine.stream(batch.sample_ids, batch.group_ids, lease=lease, **options)


def streamed(engine, batch, chunks, **options):
    """The table of `batch`, of which these rows came one after the other."""
    scoring = opened(engine, batch, **options)
    for chunk in chunks:
        scoring.submit(batch.take(chunk))
    scoring.run(engine.mounts)
    return scoring.finish()


def bits(table):
    """All that scoring decides, bytes for floats."""
    columns = {
        name: (
            column.scores.tobytes(),
            column.normalised.tobytes(),
            column.contribution.tobytes(),
            column.codes.tobytes(),
            column.words.tobytes(),
            dict(column.notes),
            {key: values.tobytes() for key, values in column.extras.items()},
        )
        for name, column in table.columns.items()
    }
    return columns, table.fused.tobytes(), table.masked.tobytes(), table.mask_reason


# -- the same bits --------------------------------------------------------------------------------


def company(batch):
    """Scores that depend on the rows of the call, as a padded network's do."""
    total = sum(len(response) for response in batch.responses)
    return RewardResult(
        scores=[len(r) / total for r in batch.responses],
        extras={"rows": [float(len(batch))] * len(batch)},
    )


async def company_later(batch):
    await asyncio.sleep(random.random() / 500)
    return company(batch)


def mixed(kit, engine):
    """Mounts in every place, of both scopes, that follow each other."""
    severity = ["none", "veto", "none"] * 4
    cells = [0.5, None, "broken", 2.0] * 3
    built = engine(
        {"type": "inline", "provider": kit.says(company)},
        {"type": "thread", "provider": kit.says(company, execution="thread")},
        {"type": "group", "provider": kit.says(company, scope="group", execution="thread")},
        {"type": "later", "provider": kit.says_later(company_later)},
        {"type": "pairs", "provider": kit.says_later(company_later, scope="group")},
        {"type": "cells", "provider": kit.column("cells"), **kit.lenient},
        {"type": "gate", "provider": kit.gate_column("severity"), "role": "gate", "penalty": -2.0},
        {
            "type": "judge",
            "provider": kit.says_later(company_later),
            "after": ["gate"],
            "only_if": "open",
        },
        {
            "type": "when",
            "provider": kit.says(company, execution="thread"),
            "when": "cells >= 1 and thread > 0",
        },
    )
    return built, whole(kit, columns={"severity": severity, "cells": cells})


@pytest.mark.parametrize("seed", range(8))
def test_rows_in_any_order_give_the_bits_of_all_rows_at_once(kit, engine, seed):
    built, batch = mixed(kit, engine)
    order = list(range(N))
    dice = random.Random(seed)
    dice.shuffle(order)
    cuts = [0, *sorted(dice.sample(range(1, N), dice.randrange(N))), N]
    chunks = [order[start:end] for start, end in itertools.pairwise(cuts)]
    assert bits(streamed(built, batch, chunks)) == bits(streamed(built, batch, [range(N)]))


def test_where_scores_do_not_depend_on_company_they_are_those_of_the_whole_batch(kit, engine):
    severity, cells = ["none", "penalty", "!down"] * 4, [0.1, None, "broken", 0.7] * 3
    gate = {"type": "gate", "provider": kit.gate_column("severity"), "role": "gate"}
    built = engine(
        {"type": "a", "provider": kit.says(kit.lengths, execution="thread")},
        {"type": "b", "provider": kit.says_later(kit.lengths_later), "weight": 0.3},
        {"type": "c", "provider": kit.column("cells"), **kit.lenient},
        {**gate, "penalty": -1.0},
        {"type": "d", "provider": kit.says(kit.lengths), "when": "c > 0.5"},
    )
    batch = whole(kit, columns={"severity": severity, "cells": cells})
    assert bits(streamed(built, batch, [[row] for row in range(N)])) == bits(built.score(batch))


@pytest.mark.parametrize("chunks", [[range(N)], [[row] for row in reversed(range(N))]])
def test_slices_follow_from_the_order_of_prompts_whenever_rows_come(kit, engine, chunks):
    seen = {name: [] for name in ("thread", "later", "group", "late")}

    def notes(name):
        def note(batch):
            seen[name].append(list(batch.sample_ids))
            return [1.0] * len(batch)

        return note

    def notes_later(name):
        async def note(batch):
            return notes(name)(batch)

        return note

    built = engine(
        {"type": "thread", "provider": kit.says(notes("thread"), execution="thread")},
        {"type": "later", "provider": kit.says_later(notes_later("later"))},
        {"type": "group", "provider": kit.says_later(notes_later("group"), scope="group")},
        {"type": "late", "provider": kit.says(notes("late"), execution="thread")},
    )
    batch = whole(kit)
    streamed(built, batch, chunks, slice_groups=2, early=("thread", "later", "group"))
    rows = [f"s{row}" for row in range(N)]
    assert sorted(seen["thread"], key=len) == [rows[8:], rows[:8]]
    assert sorted(seen["group"], key=len) == [rows[8:], rows[:8]]
    assert sorted(seen["later"], key=lambda ids: int(ids[0][1:])) == [[row] for row in rows]
    assert seen["late"] == [rows]


def test_an_unlearned_order_a_mount_that_learns_sees_the_step_whole(kit, engine):
    calls = []

    def learns(batch):
        calls.append(len(batch))
        return [1.0] * len(batch)

    provider = kit.says(
        learns,
        execution="thread",
        state=lambda self: {"calls": len(calls)},
        load_state=lambda self, state: None,
    )
    streamed(engine({"type": "m", "provider": provider}), whole(kit), [[r] for r in range(N)])
    assert calls == [N]


# -- nobody waits for the rest ---------------------------------------------------------------------


def test_a_group_is_scored_when_it_is_whole_while_others_are_still_to_come(kit, engine):
    scored = threading.Event()

    def note(batch):
        scored.set()
        return kit.lengths(batch)

    built = engine({"type": "m", "provider": kit.says(note, scope="group", execution="thread")})
    batch = whole(kit)
    scoring = opened(built, batch)
    scoring.submit(batch.take([4, 5, 6]))
    assert not scored.wait(0.05)
    scoring.submit(batch.take([7]))
    assert scored.wait(20)
    scoring.submit(batch.take([row for row in range(N) if row not in (4, 5, 6, 7)]))
    scoring.run(built.mounts)
    assert len(scoring.finish()) == N


def test_a_judge_that_follows_others_is_asked_about_a_row_before_the_next_is_there(kit, engine):
    asked = threading.Event()

    async def judge(batch):
        asked.set()
        return await kit.lengths_later(batch)

    built = engine(
        {"type": "rule", "provider": kit.says(kit.lengths)},
        {"type": "slow", "provider": kit.says_later(kit.lengths_later), "when": "rule > 0"},
        {"type": "judge", "provider": kit.says_later(judge), "when": "slow > 0"},
    )
    batch = whole(kit)
    scoring = opened(built, batch)
    scoring.submit(batch.take(range(4)))  # the rule's slice: its group
    assert asked.wait(20)
    scoring.complete(batch)
    scoring.run(built.mounts)
    assert not np.isnan(scoring.finish().fused).any()


def test_a_call_that_hangs_meets_its_deadline_while_rows_are_still_generated(
    kit, engine, gate_event
):
    def hang_once(batch):
        if "s0" in batch.sample_ids:
            gate_event.wait()
        return kit.lengths(batch)

    mount = {"type": "m", "timeout": 0.1, **kit.lenient}
    provider = lambda: kit.says(hang_once, execution="thread")  # noqa: E731
    built = engine({**mount, "provider": provider})
    batch = whole(kit)
    scoring = opened(built, batch)
    scoring.submit(batch.take(range(4)))
    deadline = time.monotonic() + 20
    while not built.mounts["m"].counters.failures:  # nobody waits for the call, and it ends
        assert time.monotonic() < deadline
        time.sleep(0.01)
    scoring.complete(batch)
    scoring.run(built.mounts)
    status = scoring.finish().columns["m"].status
    assert list(status) == ["failed"] * 4 + ["ok"] * 8


def test_a_mount_that_is_not_early_is_asked_when_its_stage_comes(kit, engine):
    asked = threading.Event()

    def note(batch):
        asked.set()
        return kit.lengths(batch)

    built = engine(
        {"type": "early", "provider": kit.says(kit.lengths, execution="thread")},
        {"type": "late", "provider": kit.says(note, execution="thread")},
        {"type": "behind", "provider": kit.says(kit.lengths), "when": "late > 0"},
    )
    batch = whole(kit)
    scoring = opened(built, batch, early=("early", "behind"))
    scoring.submit(batch)
    scoring.run(["early"])
    assert not asked.is_set()
    scoring.run(["late"])
    scoring.run(["behind"])
    assert bits(scoring.finish()) == bits(built.score(batch))


# -- what fails ------------------------------------------------------------------------------------


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


# -- callers ---------------------------------------------------------------------------------------


def test_arun_leaves_its_callers_loop_turning(kit, engine, gate_event):
    async def waits(batch):
        await asyncio.to_thread(gate_event.wait)
        return kit.lengths(batch)

    built = engine(
        {"type": "a", "provider": kit.says_later(waits)},
        {"type": "b", "provider": kit.says(kit.lengths), "when": "a > 0"},
    )
    batch = whole(kit)

    async def main():
        scoring = opened(built, batch)
        scoring.submit(batch)
        running = asyncio.create_task(scoring.arun(built.mounts))
        await asyncio.sleep(0.05)
        assert not running.done()
        gate_event.set()
        await running
        return scoring.finish()

    assert bits(asyncio.run(main())) == bits(built.score(batch))


def test_whoever_goes_away_leaves_nothing_under_way(kit, engine):
    cancelled = threading.Event()

    async def waits(batch):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return kit.lengths(batch)

    built = engine({"type": "m", "provider": kit.says_later(waits)})
    batch = whole(kit)

    async def main():
        scoring = opened(built, batch)
        scoring.submit(batch)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(scoring.arun(built.mounts), 0.1)
        with pytest.raises(RewardError, match="cancelled"):
            scoring.run(built.mounts)

    asyncio.run(main())
    assert cancelled.wait(20)


def test_the_launching_thread_goes_home_with_its_calls(kit, engine):
    built = engine({"type": "m", "provider": kit.says(kit.lengths, execution="thread")})
    for _ in range(20):
        streamed(built, whole(kit), [[row] for row in range(N)])
    deadline = time.monotonic() + 20
    while any(thread.name == "reward-streaming" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- parts -----------------------------------------------------------------------------------------


def test_slices_of_an_answer_join_to_the_whole_in_every_field():
    n, error, late = 4, RuntimeError("first"), RuntimeError("last")
    parts = [
        Answer(
            scores=np.array([np.nan, np.nan, 0.3, 0.4]),
            codes=np.array([0, 1, 2, 3], dtype=np.int8),
            words=np.array([0, 0, 1, 2], dtype=np.int8),
            reasons={3: "late"},
            extras={"x": np.array([np.nan, np.nan, 1.0, 2.0])},
            seconds=1.0,
            error=late,
            token_scores=[None, None, np.array([0.3]), None],
            asked=2,
            hits=1,
        ),
        Answer(
            scores=np.array([0.1, 0.2, np.nan, np.nan]),
            codes=np.array([1, 0, 3, 3], dtype=np.int8),
            reasons={0: "early"},
            extras={"y": np.array([5.0, np.nan, np.nan, np.nan])},
            seconds=2.0,
            error=error,
            asked=1,
        ),
    ]
    joined = JoinedAnswer(n)
    joined.take(parts[0], np.array([2, 3]), np.array([True, False]))
    joined.take(parts[1], np.array([0, 1]), None)
    found = joined.whole
    expected = {
        "scores": [0.1, 0.2, 0.3, 0.4],
        "codes": [1, 0, 2, 3],
        "words": [0, 0, 1, 2],
        "reasons": {0: "early", 3: "late"},
        "extras": {"x": [None, None, 1.0, 2.0], "y": [5.0, None, None, None]},
        "seconds": 3.0,
        "error": error,
        "unsure": [False, False, True, False],
        "token_scores": [None, None, [0.3], None],
        "asked": 3,
        "hits": 1,
    }
    assert {field.name for field in dataclasses.fields(Answer)} == set(expected)
    for name, value in expected.items():
        assert _plain(getattr(found, name)) == value, name


def _plain(value):
    if isinstance(value, np.ndarray):
        return [None if item != item else item for item in value.tolist()]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


spans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda p: (p[0], p[0] + p[1])), max_size=6
)


@given(spans, spans)
def test_hidden_seconds_are_busy_ones_in_which_nobody_waited(busy, waited):
    seconds = range(50)
    worked = {s for s in seconds if any(start <= s < end for start, end in busy)}
    idle = {s for s in seconds if any(start <= s < end for start, end in waited)}
    assert hidden_and_exposed(busy, waited) == (len(worked - idle), len(idle))
