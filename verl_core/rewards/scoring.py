"""One batch on its way through the mounts: asked stage by stage, fused once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from verl_core.config.condition import Condition
from verl_core.rewards.answer import Answer
from verl_core.rewards.conditions import holds
from verl_core.rewards.execution import Bell, Call, wait_any
from verl_core.rewards.failures import Failures
from verl_core.rewards.fuse import fuse_table, is_step
from verl_core.rewards.fuser import Fuser
from verl_core.rewards.gates import words_of
from verl_core.rewards.lease import Lease
from verl_core.rewards.mount import Mount, Rows
from verl_core.rewards.statuses import ABSTAINED, NONE, OK
from verl_core.rewards.table import RewardTable
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, RewardError
from verl_reward_sdk.protocols import Bools

T = TypeVar("T")


class Scoring:
    """A batch under one lease. Every mount runs once, in one of the stages; then `finish`.

    Args:
        batch: B rows.
        lease: the weights and generations it is scored with.
        mounts: name -> mount, in config order.
        fuser: how scores are fused.
        observe: called with the batch and its finished table.
    """

    def __init__(
        self,
        batch: RewardBatch,
        lease: Lease,
        mounts: Mapping[str, Mount],
        fuser: Fuser,
        observe: Callable[[RewardBatch, RewardTable], None],
    ) -> None:
        self.batch = batch
        self.lease = lease
        self.mounts = mounts
        self._fuser = fuser
        self._observe = observe
        self.answers: dict[str, Answer] = {}

    def run(self, names: Iterable[str], failures: Failures | None = None) -> None:
        """Ask these mounts, all at once but for those that follow another.

        Args:
            failures: counts the rows that failed, instead of their being judged here: for a batch
                that is a part of something larger, such as an evaluation.

        Raises:
            ConfigError: a mount follows one that has not run, or was run before; a column is
                missing or holds what a condition cannot compare.
            RewardError: too many rows of a mount failed, or one failed under ``on_error: raise``.
        """
        stage = _Stage(self, names)
        if stage.is_direct:
            stage.ask_directly()
        while stage.launch():
            stage.collect(wait_any(stage.calls))
        if failures is None:
            self.judge(stage.names)
        else:
            failures.add(self.mounts, self.answers, self.lease.weights, stage.names)

    async def arun(self, names: Iterable[str]) -> None:
        """`run` without blocking the caller's event loop."""
        stage, bell = _Stage(self, names), Bell()
        # Mounts that may wait for a disk are asked and read in a thread.
        aside = asyncio.to_thread if any(self.mounts[n].blocks for n in stage.names) else _here
        try:
            while await aside(stage.launch, bell):
                await aside(stage.collect, await bell.wait_any(stage.calls))
        finally:
            stage.cancel()
        self.judge(stage.names)

    def finish(self) -> RewardTable:
        """Fuse. Call it once, when every mount has run.

        Raises:
            RewardError: a mount never ran, or the gates leave no live row.
        """
        idle = [name for name in self.mounts if name not in self.answers]
        if idle:
            raise RewardError(f"mounts that no stage has run: {', '.join(idle)}")
        columns = [(mount, self.answers[name]) for name, mount in self.mounts.items()]
        table = fuse_table(self.batch, self.lease, columns, self._fuser)
        self._observe(self.batch, table)
        return table

    def judge(self, names: Sequence[str]) -> None:
        """Raise `RewardError` where mounts that have answered passed the step's bounds on failures:
        `run` does so at its end."""
        if not is_step(self.batch):
            return
        failures = Failures()
        failures.add(self.mounts, self.answers, self.lease.weights, names)
        failures.refuse("" if self.batch.step is None else f" of step {self.batch.step}")

    # -- inside ------------------------------------------------------------------------------------

    def rows_of(self, mount: Mount) -> tuple[Bools, Bools | None]:
        """The rows a mount is asked about, and those of them whose condition had no answer."""
        asked = mount.applicable(self.batch)
        unsure: Bools | None = None
        if mount.only_if is not None:
            held, unknown = self._condition(mount, mount.only_if, f"{mount.path}.only_if")
            asked &= held | unknown
            unsure = unknown
        elif mount.config.only_if == "open":
            for name in mount.config.after:
                asked &= self._open(name)
        if mount.when is not None:
            held, unknown = self._condition(mount, mount.when, f"{mount.path}.when")
            asked &= held | unknown
            unsure = unknown if unsure is None else unsure | unknown
        return asked, unsure if unsure is not None and unsure.any() else None

    def _condition(self, mount: Mount, condition: Condition, path: str) -> tuple[Bools, Bools]:
        n = len(self.batch)
        answers = [self.answers[name] for name in condition.names]
        unknown = np.logical_or.reduce([answer.codes >= ABSTAINED for answer in answers])
        scores = {
            name: [None if math.isnan(s) else s for s in self.answers[name].scores.tolist()]
            for name in condition.names
        }
        return holds(condition, scores, n, path=path), unknown

    def _open(self, gate: str) -> Bools:
        """The rows that `gate` scored and had nothing to say about."""
        answer = self.answers[gate]
        words = words_of(self.mounts[gate].config, answer)
        open_rows: Bools = (answer.codes == OK) & (words == NONE)
        return open_rows


class _Stage:
    """The mounts of one stage: launched as soon as those they follow have answered."""

    def __init__(self, scoring: Scoring, names: Iterable[str]) -> None:
        self._scoring = scoring
        self.names = tuple(names)
        self.calls: list[Call] = []
        self._asked: dict[Call, tuple[Mount, Rows | None, Bools | None]] = {}
        for name in self.names:
            if name in scoring.answers:
                raise ConfigError(
                    f"the mount {name!r} is run twice", path=scoring.mounts[name].path
                )
        # Inline mounts occupy this thread: they go last, when all others are on their way.
        waiting = [scoring.mounts[name] for name in self.names]
        self._waiting = sorted(waiting, key=lambda mount: mount.execution == "inline")

    @property
    def is_direct(self) -> bool:
        """Whether every mount answers where it is asked, about all rows, and waits for no other."""
        batch = self._scoring.batch
        return len(batch) > 0 and all(
            mount.execution == "inline"
            and mount.cache is None
            and mount.asks_all
            and not mount.depends_on
            and mount.reads <= batch.columns.keys()
            for mount in self._waiting
        )

    def ask_directly(self) -> None:
        """What `launch` and `collect` do, for mounts of which nothing else is to be seen to."""
        scoring, waiting = self._scoring, self._waiting
        self._waiting = []
        n = len(scoring.batch)
        for mount in waiting:
            call = mount.ask(scoring.batch, None)
            scoring.answers[mount.name] = mount.read(call, n, None)

    def launch(self, bell: Bell | None = None) -> bool:
        """Start every mount that may start; False where none is under way and none waits."""
        answers = self._scoring.answers
        while ready := [m for m in self._waiting if m.depends_on <= answers.keys()]:
            self._waiting = [mount for mount in self._waiting if mount not in ready]
            for mount in ready:
                self._start(mount, bell)
            self.collect([call for call in self.calls if call.done])
        if self._waiting and not self.calls:
            mount = self._waiting[0]
            missing = ", ".join(sorted(mount.depends_on - self._scoring.answers.keys()))
            raise ConfigError(
                f"the mount {mount.name!r} follows {missing}, which has not run",
                path=mount.path,
                hint="move it to the same stage or a later one",
            )
        return bool(self.calls)

    def _start(self, mount: Mount, bell: Bell | None) -> None:
        batch = self._scoring.batch
        unsure: Bools | None = None
        rows: Rows | None = None
        if not mount.asks_all or not mount.reads <= batch.columns.keys() or not len(batch):
            asked, unsure = self._scoring.rows_of(mount)
            if not asked.any():
                self._scoring.answers[mount.name] = Answer.unasked(len(batch))
                return
            rows = None if asked.all() else np.flatnonzero(asked)
        call = mount.ask(batch, rows)
        self._asked[call] = (mount, rows, unsure)
        self.calls.append(call)
        if bell is not None:
            bell.hang_on(call)

    def collect(self, ended: Sequence[Call]) -> None:
        """Keep the answers of calls that have ended."""
        for call in ended:
            mount, rows, unsure = self._asked.pop(call)
            self.calls.remove(call)
            answer = mount.read(call, len(self._scoring.batch), rows)
            answer.unsure = unsure
            self._scoring.answers[mount.name] = answer

    def cancel(self) -> None:
        """Let go of what is still under way."""
        for call in tuple(self.calls):
            call.runner.cancel(call)


async def _here(function: Callable[..., T], *arguments: object) -> T:
    """As `asyncio.to_thread`, in this thread."""
    return function(*arguments)
