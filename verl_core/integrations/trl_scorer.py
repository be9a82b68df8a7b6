"""What scores the rows of a TRL reward function: engines, weights, one table a call."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

from verl_core.integrations.fitting import RewardSets
from verl_core.integrations.remote_weights import RemoteWeights
from verl_core.integrations.trl_answers import tell
from verl_core.integrations.trl_calls import TrlCall
from verl_core.integrations.trl_rules import Mode, Trainer, skips
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.lease import Lease
from verl_core.rewards.schedules import Schedule, parse_schedule, value_at
from verl_core.rewards.table import RewardTable
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, RewardError

_RETRIES = 2
_WAIT = 1.0  # seconds before the first retry, doubled before the second
_WAITING = 8  # tables that wait for further functions; AsyncGRPO scores several groups at once


@dataclass(frozen=True)
class Plan:
    """All that a process needs to score; it pickles.

    `session` names this start of this training: see `RemoteWeights`.
    """

    sets: RewardSets
    trainer: Trainer
    mode: Mode
    weights: str | Path | None
    session: str

    @property
    def penalties(self) -> Mapping[str, float]:
        """Gate -> its penalty."""
        return {m.name: m.penalty or 0.0 for m in self.sets.train.mounts if m.is_gate}

    @property
    def names(self) -> frozenset[str]:
        """The functions that read one table."""
        mounts = self.sets.train.mounts
        return frozenset({"reward"} if self.mode == "fused" else {m.name for m in mounts})

    @property
    def scheduled(self) -> bool:
        """Whether a weight is a function of the step."""
        mounts = [m for m in self.sets.train.mounts if not m.is_gate]
        return any(isinstance(parse_schedule(m.setting()), Schedule) for m in mounts)


@dataclass(eq=False)
class _Shared:
    """The table of one call, until every function has read it."""

    call: TrlCall
    waiting: set[str]
    table: Future[RewardTable] = field(default_factory=Future)

    def is_for(self, call: TrlCall, name: str) -> bool:
        return self.call.completions is call.completions and name in self.waiting

    @property
    def failed(self) -> bool:
        return self.table.done() and self.table.exception() is not None


class Scorer:
    """Scores each call's rows once, whichever function is called first."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._lock = threading.Lock()
        self._shared: list[_Shared] = []
        self._engines: dict[bool, RewardEngine] = {}
        self._remote: RemoteWeights | None = None
        self._checked = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Scorer, (self.plan,)

    def close(self) -> None:
        """Release the providers; a later call loads them anew."""
        with self._lock:
            engines, self._engines = list(self._engines.values()), {}
        for engine in dict.fromkeys(engines):
            engine.close()

    # -- one table a call --------------------------------------------------------------------------

    def table(self, name: str, call: TrlCall) -> RewardTable:
        """The call's rows, scored by the first function that asks."""
        shared, mine = self._claim(name, call)
        if mine:
            with _Outcome(shared) as outcome:
                outcome.table = self._score(call)
        return shared.table.result()

    async def atable(self, name: str, call: TrlCall) -> RewardTable:
        """`table` without blocking the event loop."""
        import asyncio

        shared, mine = self._claim(name, call)
        if mine:
            with _Outcome(shared) as outcome:
                outcome.table = await self._ascore(call)
        return await asyncio.wrap_future(shared.table)

    def _claim(self, name: str, call: TrlCall) -> tuple[_Shared, bool]:
        """The call's table to be, and whether the caller has to make it."""
        with self._lock:
            found = next((one for one in self._shared if one.is_for(call, name)), None)
            mine = found is None
            if found is None:
                found = _Shared(call, set(self.plan.names))
                # A call that failed is never asked for by the other functions: let it go.
                self._shared = [one for one in self._shared if not one.failed][1 - _WAITING :]
                self._shared.append(found)
            found.waiting.discard(name)
            if not found.waiting:
                self._shared.remove(found)
        return found, mine

    # -- scoring -----------------------------------------------------------------------------------

    def _score(self, call: TrlCall) -> RewardTable:
        batch, engine = self._begun(call)
        for wait in self._waits():
            try:
                table = engine.score(batch, lease=self._lease(engine, batch))
                return self._told(call, engine, table)
            except RewardError:
                if wait is None:
                    raise
                engine.step_again()
                sleep(wait)
        raise AssertionError("the last wait is None")

    async def _ascore(self, call: TrlCall) -> RewardTable:
        import asyncio

        batch, engine = await asyncio.to_thread(self._begun, call)
        for wait in self._waits():
            try:
                lease = await asyncio.to_thread(self._lease, engine, batch)
                return self._told(call, engine, await engine.ascore(batch, lease=lease))
            except RewardError:
                if wait is None:
                    raise
                engine.step_again()
                await asyncio.sleep(wait)
        raise AssertionError("the last wait is None")

    @staticmethod
    def _waits() -> list[float | None]:
        return [*(_WAIT * 2**i for i in range(_RETRIES)), None]

    def _begun(self, call: TrlCall) -> tuple[RewardBatch, RewardEngine]:
        self._check(call)
        engine = self._engine(training=call.training)
        engine.setup()
        return call.batch(engine.reads, self.plan.trainer), engine

    def _told(self, call: TrlCall, engine: RewardEngine, table: RewardTable) -> RewardTable:
        if table.training and not self.plan.trainer.is_async:
            engine.step_end(table)
        tell(table, call.rest.get("log_metric"), call.rest.get("log_extra"))
        return table

    def _check(self, call: TrlCall) -> None:
        """What only the running trainer can tell."""
        plan, owner = self.plan, call.owner
        if self._checked:
            return
        if plan.scheduled and call.step is None:
            raise ConfigError(
                "a weight follows a schedule, and this trainer tells no step (trainer_state)",
                path="reward",
                hint="give the weight as a number",
            )
        beta = float(getattr(owner, "beta", 0.0) or 0.0)
        if beta:
            for mount in plan.sets.train.mounts:
                if skips(mount):
                    raise ConfigError(
                        f"the trainer's KL term (beta={beta:g}) trains on rows that"
                        f" {mount.name} keeps out of the update",
                        path=f"reward.{mount.name}",
                        hint="set beta=0.0, or let the gate veto",
                    )
        given = getattr(owner, "reward_weights", None)
        if plan.mode == "per_mount" and given is not None:
            self._check_weights(owner, [float(weight) for weight in given])
        self._checked = True

    def _check_weights(self, owner: Any, given: Sequence[float]) -> None:
        by_name = {
            function.__name__: weight
            for function, weight in zip(owner.reward_funcs, given, strict=False)
            if getattr(function, "scorer", None) is self
        }
        for mount in self.plan.sets.train.mounts:
            ours = 1.0 if mount.is_gate else initial(mount.setting())
            found = by_name.get(mount.name, ours)
            if abs(found - ours) > 1e-6 * max(1.0, ours):  # TRL keeps them in float32
                raise ConfigError(
                    f"the trainer weighs {mount.name} with {found:g}, the config with {ours:g}",
                    path=f"reward.{mount.name}.weight",
                    hint="GRPOConfig(reward_weights=rewards.reward_weights)",
                )

    # -- engines and weights -----------------------------------------------------------------------

    def _engine(self, *, training: bool) -> RewardEngine:
        """The engine of training, and that of evaluation; the same where they score alike."""
        key = training or self.plan.sets.same
        with self._lock:
            if key not in self._engines:
                self._engines[key] = self._built(self.plan.sets, training=key)
            return self._engines[key]

    def _built(self, sets: RewardSets, *, training: bool) -> RewardEngine:
        if not training:
            return RewardEngine.from_config(sets.evaluation, frozen_weights=True)
        live = self.plan.weights
        if isinstance(live, Path):
            live.parent.mkdir(parents=True, exist_ok=True)
            return RewardEngine.from_config(sets.train, store_path=live, store_shared=True)
        if isinstance(live, str):
            rewards = frozenset(m.name for m in sets.train.mounts if not m.is_gate)
            self._remote = RemoteWeights(live, rewards, shared_session(self.plan))
        return RewardEngine.from_config(sets.train)

    def _lease(self, engine: RewardEngine, batch: RewardBatch) -> Lease | None:
        """What the rows are scored under; None: the config's weights at the batch's step."""
        if not batch.training:
            return self._frozen(engine, batch)
        if self._remote is not None:
            revision, weights = self._remote.at(batch.step)  # without a step: what is in force
            engine.check_weights(weights)
            return engine.lease_of(revision, weights, batch.step)
        if not isinstance(self.plan.weights, Path):
            return None
        if batch.step is None and engine.store is not None:
            engine.store.refresh()  # another process may have changed them
            return None
        return engine.lease(batch.step)

    def _frozen(self, engine: RewardEngine, batch: RewardBatch) -> Lease | None:
        """Evaluation has the weights of step 0, and never the live ones."""
        if not self.plan.sets.same:
            return None
        mounts = [mount for mount in self.plan.sets.train.mounts if not mount.is_gate]
        weights = {mount.name: initial(mount.setting()) for mount in mounts}
        return engine.lease_of(0, weights, batch.step)


def shared_session(plan: Plan) -> str:
    """The session of the plan that rank 0 has, in every process of the trainer. It is asked for by
    all of them at once: each builds its engine in the first step that it scores.

    Raises:
        ConfigError: there are several processes, and they are not connected.
    """
    if plan.trainer.processes == 1 or plan.trainer.is_async:
        return plan.session
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        raise ConfigError(
            f"live weights from {plan.weights}: there are {plan.trainer.processes} processes, which"
            " are not connected by torch.distributed, and cannot agree on whose lease they take",
            hint="start them with accelerate or torchrun, or give the path of a weights.db that all"
            " of them see",
        )
    sessions: list[Any] = [plan.session]
    distributed.broadcast_object_list(sessions, src=0)
    return str(sessions[0])


class _Outcome:
    """Ends a shared table with what its block made, or with what it raised."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self.table: RewardTable | None = None

    def __enter__(self) -> _Outcome:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._shared.table.set_exception(error)
        elif self.table is not None:
            self._shared.table.set_result(self.table)


def initial(setting: Any) -> float:
    """A weight as it is at step 0."""
    return value_at(parse_schedule(setting), 0)
