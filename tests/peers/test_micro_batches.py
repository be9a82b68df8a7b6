"""Rows that arrive one by one are scored together where that costs no time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from verl_core.integrations.micro_batches import MicroBatches


class Scorer:
    """Doubles numbers; remembers its batches; waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.under_way = self.most = 0
        self.gates: list[asyncio.Event] = []

    def hold(self) -> asyncio.Event:
        """The next call waits for this event."""
        event = asyncio.Event()
        self.gates.append(event)
        return event

    async def __call__(self, rows: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(rows))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.gates:
            await self.gates.pop(0).wait()
        else:
            await asyncio.sleep(0)
        self.under_way -= 1
        return [ValueError(f"row {row}") if row < 0 else 2 * row for row in rows]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_rows_that_are_there_at_once_go_together_and_each_caller_gets_its_own():
    scorer = Scorer()
    batches = MicroBatches(scorer, rows=100, calls=1)

    async def main() -> list[int | Exception]:
        return await asyncio.gather(*(batches.add(row) for row in range(7)))

    assert asyncio.run(main()) == [0, 2, 4, 6, 8, 10, 12]
    assert scorer.batches == [[0, 1, 2, 3, 4, 5, 6]]


def test_a_row_that_comes_alone_goes_alone_and_at_once():
    scorer = Scorer()
    batches = MicroBatches(scorer, rows=100, calls=1)

    async def main() -> None:
        assert await batches.add(1) == 2
        assert await batches.add(2) == 4

    asyncio.run(main())
    assert scorer.batches == [[1], [2]]


def test_rows_that_arrive_while_a_call_is_under_way_wait_for_its_end_and_go_together():
    scorer = Scorer()
    batches = MicroBatches(scorer, rows=100, calls=1)

    async def main() -> None:
        event = scorer.hold()
        first = asyncio.create_task(batches.add(0))
        await turns()
        others = []
        for row in (1, 2, 3):
            others.append(asyncio.create_task(batches.add(row)))
            await turns()
        assert scorer.batches == [[0]]
        event.set()
        assert await asyncio.gather(first, *others) == [0, 2, 4, 6]

    asyncio.run(main())
    assert scorer.batches == [[0], [1, 2, 3]]


def test_no_batch_is_larger_and_no_more_calls_are_under_way_than_allowed():
    scorer = Scorer()
    batches = MicroBatches(scorer, rows=3, calls=2)

    async def main() -> list[int | Exception]:
        return await asyncio.gather(*(batches.add(row) for row in range(11)))

    assert asyncio.run(main()) == [2 * row for row in range(11)]
    assert [len(batch) for batch in scorer.batches] == [3, 3, 3, 2]
    assert scorer.most == 2


def test_a_row_that_fails_fails_alone():
    batches = MicroBatches(Scorer(), rows=10, calls=1)

    async def main() -> list[int | BaseException]:
        tasks = (batches.add(row) for row in (1, -5, 3))
        return await asyncio.gather(*tasks, return_exceptions=True)

    one, failed, three = asyncio.run(main())
    assert (one, three) == (2, 6)
    assert isinstance(failed, ValueError)
    assert str(failed) == "row -5"


def test_what_the_call_itself_raises_goes_to_every_row_and_the_next_call_is_well():
    calls = 0

    async def score(rows: Sequence[int]) -> list[int | Exception]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no room")
        return list(rows)

    batches = MicroBatches(score, rows=10, calls=1)

    async def main() -> None:
        failed = await asyncio.gather(batches.add(1), batches.add(2), return_exceptions=True)
        assert [str(error) for error in failed] == ["no room", "no room"]
        assert await batches.add(3) == 3

    asyncio.run(main())


def test_an_answer_too_few_is_an_error_for_the_rows_that_have_none():
    async def score(rows: Sequence[int]) -> list[int | Exception]:
        return [7]

    batches = MicroBatches(score, rows=10, calls=1)

    async def main() -> list[int | BaseException]:
        return await asyncio.gather(batches.add(1), batches.add(2), return_exceptions=True)

    first, second = asyncio.run(main())
    assert first == 7
    assert isinstance(second, ValueError)


def test_a_caller_that_gives_up_harms_nobody_else():
    scorer = Scorer()
    batches = MicroBatches(scorer, rows=10, calls=1)

    async def main() -> None:
        event = scorer.hold()
        busy = asyncio.create_task(batches.add(0))
        await turns()
        gone, kept = (asyncio.create_task(batches.add(row)) for row in (1, 2))
        await turns()
        gone.cancel()
        await turns()
        event.set()
        assert await kept == 4
        assert await busy == 0

    asyncio.run(main())
    assert scorer.batches == [[0], [2]]


def test_event_loops_one_after_the_other_and_side_by_side():
    scorer = Scorer()
    batches = MicroBatches(scorer, rows=10, calls=1)
    answers: dict[int, int] = {}

    def work(number: int) -> None:
        async def main() -> None:
            answers[number] = sum(await asyncio.gather(*(batches.add(number) for _ in range(50))))

        asyncio.run(main())

    work(1)
    threads = [threading.Thread(target=work, args=(number,)) for number in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: 100 * number for number in (1, 2, 3, 4)}


def test_an_event_loop_that_ends_in_the_middle_leaves_nothing_behind():
    scorer = Scorer()
    batches = MicroBatches(scorer, rows=1, calls=1)

    async def main() -> None:
        scorer.hold()  # never set
        tasks = [asyncio.create_task(batches.add(row)) for row in (1, 2, 3)]
        await turns()
        assert not any(task.done() for task in tasks)

    asyncio.run(main())  # cancels what is under way; a warning about it would be an error
    assert scorer.batches == [[1]]
    scorer.gates.clear()

    async def again() -> int:
        return await batches.add(4)

    assert asyncio.run(again()) == 8


@pytest.mark.parametrize(("rows", "calls"), [(0, 1), (1, 0)])
def test_bounds_below_one_are_refused(rows, calls):
    with pytest.raises(ValueError, match="at least 1"):
        MicroBatches(Scorer(), rows=rows, calls=calls)
