"""A step's rows scored as they come: the same bits in any order, and nobody waits for the rest."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time

import numpy as np
import pytest

from tests.rewards.streams import N, bits, opened, streamed, whole
from verl_reward_sdk import RewardResult
from verl_reward_sdk.errors import RewardError

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


def test_a_slow_mount_is_no_late_one(kit, engine):
    """What waits for a busy worker is not yet asked: no `queue_timeout` runs against it."""

    def slow(batch):
        time.sleep(0.05)
        return kit.lengths(batch)

    built = engine({"type": "m", "provider": kit.says(slow, execution="thread"), "timeout": 0.4})
    n = 24
    batch = kit.batch(n, group_ids=[f"g{row // 2}" for row in range(n)])
    column = streamed(built, batch, [range(n)]).columns["m"]  # 12 calls, one after the other
    assert set(column.status) == {"ok"}


def test_answers_of_one_mount_open_slices_of_an_earlier_one(kit, engine):
    built = engine(
        {
            "type": "late",
            "provider": kit.says(kit.lengths, execution="thread"),
            "when": "early > 99",
        },
        {"type": "early", "provider": kit.says(kit.lengths, execution="thread")},
    )
    column = streamed(built, whole(kit), [range(N)]).columns["late"]
    assert set(column.status) == {"not_applicable"}
