"""A step's rows scored while others of it are still generated; fused once, when the last is in.

Every mount is asked slice by slice, each as soon as its rows are in and the mounts that it follows
have answered on them. Slices are cut by `verl_core.rewards.slices` from the order of rows alone, so
that the same step gives the same bits however its rows arrive.

Mounts that are asked elsewhere are launched by whoever comes by: the caller with its next rows, or
a thread of the step's own, which also ends what is overdue while the caller is busy generating.
``inline`` mounts run in the caller's thread, inside `submit`: they are microseconds by their
promise, take as long there as at the end, and a judge that follows an inline rule need not wait for
the end of generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from time import monotonic

import numpy as np

from verl_core.rewards.execution import Call
from verl_core.rewards.execution.call import tend
from verl_core.rewards.hidden import Spans, hidden_and_exposed
from verl_core.rewards.joined import JoinedAnswer
from verl_core.rewards.mount import Mount, Rows
from verl_core.rewards.scoring import Scoring
from verl_core.rewards.slices import Agenda, Slice
from verl_core.rewards.table import RewardTable
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, ContractError, RewardError, did_you_mean
from verl_reward_sdk.protocols import Bools


class StreamedScoring:
    """A step under one lease: `submit` its rows as they come, `run` its mounts, then `finish`.

    Made by `RewardEngine.stream`. One thread at a time calls it.

    Args:
        sample_ids: of the step's B rows, in the order of prompts.
        group_ids: B of them, or None: each row is a group.
        mounts: name -> mount, in config order.
        begin: makes the `Scoring` of a batch, under the step's lease.
        slice_groups: so many groups are a slice.
        early: mounts that may begin with the first rows; the others wait for `run`.
    """

    def __init__(
        self,
        sample_ids: Sequence[str],
        group_ids: Sequence[Hashable] | None,
        mounts: Mapping[str, Mount],
        begin: Callable[[RewardBatch], Scoring],
        *,
        slice_groups: int = 1,
        early: Collection[str],
    ) -> None:
        self._ids = tuple(sample_ids)
        _check_step(self._ids, group_ids, slice_groups)
        self._place = {sample_id: row for row, sample_id in enumerate(self._ids)}
        self._mounts, self._begin = mounts, begin
        self._begun, self._judged = set(early), set[str]()
        self._source: list[tuple[RewardBatch, int] | None] = [None] * len(self._ids)
        self._whole: RewardBatch | None = None
        self._answers = {name: JoinedAnswer(len(self._ids)) for name in mounts}
        # All of the below is guarded by this lock, which no worker of a mount ever takes.
        self._lock = threading.RLock()
        self._agenda = Agenda(
            mounts, self._ids if group_ids is None else group_ids, slice_groups, self._begun
        )
        self._calls: dict[Call, tuple[Slice, Rows, Bools | None]] = {}
        self._ended: deque[Call] = deque()
        self._room = {name: mount.room for name, mount in mounts.items()}
        self._followed = {
            name: any(name in other.depends_on for other in mounts.values()) for name in mounts
        }
        self._blocks = any(mount.blocks for mount in mounts.values())
        self._driver: threading.Thread | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._bell = threading.Event()
        self._until = math.inf  # when the driver looks by itself
        self._listener: Callable[[], object] | None = None
        self._busy: Spans = []
        self._waited: Spans = []

    def __len__(self) -> int:
        return len(self._ids)

    # -- rows come ---------------------------------------------------------------------------------

    def submit(self, rows: RewardBatch) -> None:
        """Hand in rows of the step that have ended: any number, in any order, each once.

        Returns at once, but for the inline mounts that may now be asked.

        Raises:
            ContractError: a row is not of this step, or came before.
            ConfigError: a column is missing, or holds what a condition cannot compare.
        """
        with self._lock:
            places = [self._placed(sample_id) for sample_id in rows.sample_ids]
            for index, place in enumerate(places):
                self._source[place] = (rows, index)
            self._agenda.came(places)
            self._go_on()
            self._ask_inline()

    def complete(self, batch: RewardBatch) -> None:
        """Give the whole step's `batch`, in its order: rows that have not come are taken from it,
        and it is what is fused. Without it that is what was submitted.

        Raises:
            ContractError: its rows are not those of the step. Also as `submit`.
        """
        if tuple(batch.sample_ids) != self._ids:
            raise ContractError(
                "this is not the step's whole batch",
                provider="batch",
                value=len(batch),
                bound=f"the {len(self)} rows that were announced, in their order",
            )
        with self._lock:
            missing = [row for row, source in enumerate(self._source) if source is None]
            self._whole = batch
            if missing:
                self.submit(batch if len(missing) == len(self) else batch.take(missing))

    def _placed(self, sample_id: str) -> int:
        place = self._place.get(sample_id)
        if place is None or self._source[place] is not None:
            what = "is not of this step" if place is None else "came twice"
            raise ContractError(
                f"a row {what}", provider="batch", value=sample_id, bound="each row once"
            )
        return place

    # -- mounts run --------------------------------------------------------------------------------

    def run(self, names: Iterable[str]) -> None:
        """Wait for these mounts; those that were not early begin now. Every row must be in.

        Raises:
            ConfigError: a mount follows one that has not run, or was run before; a column is
                missing or holds what a condition cannot compare.
            RewardError: too many rows of a mount failed, or one failed under ``on_error: raise``;
                or rows are missing.
        """
        stage, bell = self._open(names), threading.Event()
        with self._heard(bell.set):
            while not self._advance(stage):
                bell.wait()
                bell.clear()
        self._judge(stage)

    async def arun(self, names: Iterable[str]) -> None:
        """`run` without blocking the caller's event loop, but for inline mounts."""
        stage, bell, loop = self._open(names), asyncio.Event(), asyncio.get_running_loop()
        with self._heard(lambda: loop.call_soon_threadsafe(bell.set)):
            while not self._advance(stage):
                await bell.wait()
                bell.clear()
        self._judge(stage)

    def finish(self) -> RewardTable:
        """Fuse. Call it once, when every mount has run.

        Raises:
            RewardError: a mount never ran, or the gates leave no live row.
        """
        whole = self._scoring(self._judged)
        self.cancel()
        return whole.finish()

    def cancel(self) -> None:
        """Let go of what is still under way; nothing more can be asked."""
        with self._lock:
            self._closed = True
            self._agenda.clear()
            calls = list(self._calls)
            self._calls.clear()
            self._bell.set()
        for call in calls:
            call.runner.cancel(call)

    def seconds(self) -> tuple[float, float]:
        """``(hidden, exposed)``: wall seconds in which rewards were computed while the caller did
        something else, and in which it waited for them (or computed inline ones)."""
        return hidden_and_exposed(self._busy, self._waited)

    # -- inside ------------------------------------------------------------------------------------

    def _open(self, names: Iterable[str]) -> tuple[str, ...]:
        """The stage's mounts, of which those that were not early may begin now."""
        stage = tuple(names)
        for name in stage:
            if name not in self._mounts:
                hint = did_you_mean(name, self._mounts)
                raise ConfigError(f"there is no mount {name!r}", path="reward", hint=hint)
        with self._lock:
            self._refuse(stage)
            for name in stage:
                if name not in self._begun:
                    self._agenda.opened(name)
            self._begun.update(stage)
            self._go_on()
        return stage

    def _refuse(self, stage: Sequence[str]) -> None:
        missing = [i for i, source in zip(self._ids, self._source, strict=True) if source is None]
        if missing:
            raise RewardError(
                f"{len(missing)} of {len(self)} rows of the step never came, such as {missing[0]!r}"
            )
        for name in stage:
            mount = self._mounts[name]
            if name in self._judged:
                raise ConfigError(f"the mount {name!r} is run twice", path=mount.path)
            absent = sorted(mount.depends_on - self._begun - set(stage))
            if absent:
                raise ConfigError(
                    f"the mount {name!r} follows {', '.join(absent)}, which has not run",
                    path=mount.path,
                    hint="move it to the same stage or a later one",
                )

    @contextlib.contextmanager
    def _heard(self, ring: Callable[[], object]) -> Iterator[None]:
        """The caller waits, and `ring` wakes it; where it goes away, nothing is left under way."""
        start = monotonic()
        with self._lock:
            self._listener = ring
        try:
            yield
        except BaseException:
            self.cancel()
            raise
        finally:
            with self._lock:
                self._listener = None
            self._waited.append((start, monotonic()))

    def _advance(self, stage: Sequence[str]) -> bool:
        """Ask inline mounts; whether all of the stage have answered."""
        with self._lock:
            self._go_on()
            self._ask_inline()
            if self._error is not None:
                raise self._error
            if self._closed:
                raise RewardError("the scoring was cancelled")
            return all(self._agenda.done(name) for name in stage)

    def _judge(self, stage: Sequence[str]) -> None:
        self._judged.update(stage)
        self._scoring(stage).judge(stage)

    def _scoring(self, names: Iterable[str]) -> Scoring:
        """The whole step with the answers of these mounts."""
        if self._whole is None:
            self._whole = self._rows(np.arange(len(self)))
        scoring = self._begin(self._whole)
        scoring.answers = {name: self._answers[name].whole for name in names}
        return scoring

    def _ask_inline(self) -> None:
        if not self._agenda.ready_inline:
            return
        start = monotonic()
        while self._agenda.ready_inline:
            self._ask(self._agenda.ready_inline.popleft())
            self._collect()
        self._waited.append((start, monotonic()))
        self._go_on()

    def _ask(self, one: Slice) -> None:
        """Ask a mount about a slice, or about the rows of it that its conditions leave."""
        batch = self._rows(one.rows)
        part = self._begin(batch)
        part.answers = {
            name: self._answers[name].of_rows(one.rows) for name in one.mount.depends_on
        }
        asked, unsure = part.rows_of(one.mount)
        if not asked.any():
            self._agenda.answered(one)
            return
        local = None if asked.all() else np.flatnonzero(asked)
        call = one.mount.ask(batch, local)
        self._calls[call] = (one, one.rows if local is None else one.rows[local], unsure)
        self._room[one.mount.name] -= 1
        if call.queued + min(call.limits.timeout, call.limits.queue_timeout) < self._until:
            self._bell.set()
        call.future.add_done_callback(lambda _: self._over(call, one.mount.name))

    def _over(self, call: Call, name: str) -> None:
        """In whatever thread it ended. The driver is woken where somebody waits for the answer;
        else whoever comes next keeps it: each time that a thread wakes up beside one that
        generates, the steps of a small model wait.

        Nothing is missed without the lock: who begins to wait says so first and looks then.
        """
        self._ended.append(call)
        waits = self._followed[name] or bool(self._agenda.ready[name])
        if waits or self._blocks or self._listener is not None:
            self._bell.set()

    def _collect(self) -> None:
        """Keep the answers of calls that have ended."""
        while self._ended:
            call = self._ended.popleft()
            if call not in self._calls:  # cancelled
                continue
            one, asked, unsure = self._calls.pop(call)
            self._room[one.mount.name] += 1
            if call.started is not None and one.mount.execution != "inline":
                self._busy.append((call.started, call.ended or monotonic()))
            answer = one.mount.answer(call, None if len(asked) == len(self) else asked)
            self._answers[one.mount.name].take(answer, asked, one.rows, unsure)
            self._agenda.answered(one)

    def _go_on(self) -> None:
        """Collect and launch in the caller's thread, which saves the driver's waking up; left to
        the driver where it could wait for a disk."""
        if self._closed:
            return
        if self._blocks:
            self._bell.set()
        else:
            self._turn()
        if self._driver is None and (self._calls or self._agenda.has_ready):
            self._driver = threading.Thread(
                target=self._drive, name="reward-streaming", daemon=True
            )
            self._driver.start()

    def _turn(self) -> None:
        """What is raised is kept for who runs the mounts; nothing more is asked then."""
        try:
            self._collect()
            self._launch()
        except BaseException as error:  # noqa: BLE001 - a boundary: `run` raises it
            self._error = error
            self.cancel()

    def _launch(self) -> None:
        """Ask what may be asked. A mount has no more calls than it has room for: the others wait
        here, where no `queue_timeout` runs against a mount that is only slow."""
        queues = self._agenda.ready.items()
        while open_ones := [name for name, slices in queues if slices and self._room[name] > 0]:
            for name in open_ones:
                self._ask(self._agenda.ready[name].popleft())

    def _rows(self, rows: Rows) -> RewardBatch:
        """These rows as one batch."""
        if self._whole is not None:
            return self._whole if len(rows) == len(self) else self._whole.take(rows.tolist())
        sources = [source for source in map(self._source.__getitem__, rows.tolist()) if source]
        if len({id(batch) for batch, _ in sources}) == 1:
            batch, index = sources[0][0], [index for _, index in sources]
            is_whole = len(index) == len(batch) and index == list(range(len(batch)))
            return batch if is_whole else batch.take(index)
        return RewardBatch.concat([batch.take([index]) for batch, index in sources])

    # -- the thread that launches, collects and ends what is overdue -----------------------------

    def _drive(self) -> None:
        while True:
            self._bell.clear()
            with self._lock:
                self._until = math.inf  # whoever asks a mount now rings the bell
                self._turn()
                if self._listener is not None:
                    with contextlib.suppress(RuntimeError):  # its loop was closed
                        self._listener()
                if not self._calls and not self._agenda.has_ready:
                    self._driver = None
                    return
                calls = list(self._calls)
            pause = tend(calls)
            self._until = monotonic() + pause
            self._bell.wait(pause)


def _check_step(
    ids: Sequence[str], group_ids: Sequence[Hashable] | None, slice_groups: int
) -> None:
    if slice_groups < 1:
        raise ValueError(f"slice_groups must be at least 1, not {slice_groups}")
    if group_ids is not None and len(group_ids) != len(ids):
        raise ContractError(
            "group_ids has a wrong length",
            provider="batch",
            value=len(group_ids),
            bound=f"{len(ids)} rows",
        )
    if len(set(ids)) != len(ids):
        raise ContractError(
            "a sample id stands twice",
            provider="batch",
            value=Counter(ids).most_common(1)[0][0],
            bound="unique ids",
        )
