"""One batch on its way through the mounts: asked stage by stage, fused once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from verl_core.config.condition import Condition
from verl_core.rewards.answer import Answer, Bools
from verl_core.rewards.conditions import holds
from verl_core.rewards.execution import Bell, Call, wait_any
from verl_core.rewards.fuse import fuse_table, is_step
from verl_core.rewards.gates import words_of
from verl_core.rewards.lease import Lease
from verl_core.rewards.mount import Mount, Rows
from verl_core.rewards.statuses import ABSTAINED, NONE, OK
from verl_core.rewards.table import RewardTable
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, RewardError
from verl_reward_sdk.protocols import FusionPolicy


class Scoring:
    """A batch under one lease. Every mount runs once, in one of the stages; then `finish`.

    Args:
        batch: B rows.
        lease: the weights and generations it is scored with.
        mounts: name -> mount, in config order.
        policy: how scores are fused.
        observe: called with the finished table.
    """

    def __init__(
        self,
        batch: RewardBatch,
        lease: Lease,
        mounts: Mapping[str, Mount],
        policy: FusionPolicy,
        observe: Callable[[RewardTable], None],
    ) -> None:
        self.batch = batch
        self.lease = lease
        self.mounts = mounts
        self._policy = policy
        self._observe = observe
        self.answers: dict[str, Answer] = {}

    def run(self, names: Iterable[str]) -> None:
        """Ask these mounts, all at once but for those that follow another.

        Raises:
            ConfigError: a mount follows one that has not run, or was run before; a column is
                missing or holds what a condition cannot compare.
            RewardError: too many rows of a mount failed, or one failed under ``on_error: raise``.
        """
        stage = _Stage(self, names)
        while stage.launch():
            stage.collect(wait_any(stage.calls))
        self._judge(stage.names)

    async def arun(self, names: Iterable[str]) -> None:
        """`run` without blocking the caller's event loop."""
        stage, bell = _Stage(self, names), Bell()
        try:
            while stage.launch(bell):
                stage.collect(await bell.wait_any(stage.calls))
        finally:
            stage.cancel()
        self._judge(stage.names)

    def finish(self) -> RewardTable:
        """Fuse. Call it once, when every mount has run.

        Raises:
            RewardError: a mount never ran, or the gates leave no live row.
        """
        idle = [name for name in self.mounts if name not in self.answers]
        if idle:
            raise RewardError(f"mounts that no stage has run: {', '.join(idle)}")
        columns = [(mount, self.answers[name]) for name, mount in self.mounts.items()]
        table = fuse_table(self.batch, self.lease, columns, self._policy)
        self._observe(table)
        return table

    # -- inside ------------------------------------------------------------------------------------

    def _judge(self, names: Sequence[str]) -> None:
        """The step's bounds on failures, for mounts that have just run."""
        if not is_step(self.batch):
            return
        broken: list[str] = []
        cause: BaseException | None = None
        for name in names:
            mount, answer = self.mounts[name], self.answers[name]
            if mount.role == "gate" or self.lease.weights[name] == 0:
                continue
            failed, asked = answer.failed_share()
            strict = mount.config.on_error == "raise"
            if failed and (strict or failed > mount.config.max_error_rate * asked):
                bound = (
                    "on_error: raise"
                    if strict
                    else f"max_error_rate {mount.config.max_error_rate:g}"
                )
                broken.append(
                    f"{name}: {failed} of {asked} rows failed ({bound}): {answer.first_reason()}"
                )
                cause = cause or answer.error
        if broken:
            step = "" if self.batch.step is None else f" of step {self.batch.step}"
            raise RewardError(f"the rewards{step} may not be used: " + "; ".join(broken)) from cause

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
        asked, unsure = self._scoring.rows_of(mount)
        batch = self._scoring.batch
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
        for call in self.calls:
            call.runner.cancel(call)
